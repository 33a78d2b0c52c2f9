#include "ring_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace colibri {

namespace {

constexpr uint64_t kMagic = 0x31676e6972696c63;  // "clirring1", little-endian, cut to eight bytes
constexpr uint64_t kPage = 4096, kMinRing = 4096, kMaxRing = uint64_t{1} << 30;

struct Header {
  uint64_t magic;
  uint64_t ring_bytes;
  uint8_t token[kTokenBytes];
  alignas(64) RingControl control[2];
};
static_assert(sizeof(Header) <= kPage, "the header has one page");

[[noreturn]] void fail(const std::string& what, int error = 0) {
  throw std::runtime_error("shared memory: " + what + (error ? std::string(": ") + std::strerror(error) : ""));
}

uint64_t segment_bytes(uint64_t ring_bytes) { return kPage + 2 * ring_bytes; }

bool is_ring_size(uint64_t bytes) { return bytes >= kMinRing && bytes <= kMaxRing && !(bytes & (bytes - 1)); }

void check_arguments(uint64_t ring_bytes, const std::string& token) {
  if (!is_ring_size(ring_bytes))
    fail("ring_bytes: expected a power of two from 4096 to 2^30, got " + std::to_string(ring_bytes));
  if (token.size() != kTokenBytes) fail("token: expected 16 bytes, got " + std::to_string(token.size()));
}

void* map(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(fd);
    fail("cannot map it", error);
  }
  return base;
}

}  // namespace

RingMemory RingMemory::create(uint64_t ring_bytes, const std::string& token) {
  check_arguments(ring_bytes, token);
  const int fd = memfd_create("colibri-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail("cannot create it", errno);
  const uint64_t bytes = segment_bytes(ring_bytes);
  // Sealed, so that a peer cannot cut it short and kill this process by SIGBUS.
  if (ftruncate(fd, static_cast<off_t>(bytes)) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    const int error = errno;
    close(fd);
    fail("cannot size and seal it", error);
  }
  auto* header = new (map(fd, bytes)) Header{};
  header->ring_bytes = ring_bytes;
  std::memcpy(header->token, token.data(), kTokenBytes);
  header->magic = kMagic;
  return RingMemory(fd, header, ring_bytes);
}

RingMemory RingMemory::open(const std::string& path, const std::string& token) {
  check_arguments(kMinRing, token);
  // The path is the peer's word: whatever lies there, opening it has no side effect and does not wait.
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail("cannot open the worker's descriptor", errno);
  struct stat facts;
  const int seals = fcntl(fd, F_GET_SEALS), fixed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (fstat(fd, &facts) || seals < 0 || (seals & fixed) != fixed) {
    close(fd);
    fail("the worker's descriptor is no sealed memory");
  }
  // From the sealed size, which cannot change; the header only has to agree.
  const auto bytes = static_cast<uint64_t>(facts.st_size), ring_bytes = (bytes - kPage) / 2;
  if (bytes < kPage || !is_ring_size(ring_bytes) || segment_bytes(ring_bytes) != bytes) {
    close(fd);
    fail("the worker's descriptor has an impossible size: " + std::to_string(bytes));
  }
  void* base = map(fd, bytes);
  close(fd);  // the mapping holds the memory
  RingMemory memory(-1, base, ring_bytes);
  const auto* header = static_cast<const Header*>(base);
  if (header->magic != kMagic || header->ring_bytes != ring_bytes ||
      std::memcmp(header->token, token.data(), kTokenBytes))
    fail("the worker's descriptor is not the memory that it offered");
  return memory;
}

RingMemory::RingMemory(RingMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), base_(std::exchange(other.base_, nullptr)), ring_bytes_(other.ring_bytes_) {}

RingMemory::~RingMemory() {
  if (base_) munmap(base_, segment_bytes(ring_bytes_));
  if (fd_ >= 0) close(fd_);
}

Ring RingMemory::ring(int direction) const {
  auto* data = static_cast<uint8_t*>(base_) + kPage + static_cast<uint64_t>(direction) * ring_bytes_;
  return Ring(&static_cast<Header*>(base_)->control[direction], data, ring_bytes_);
}

}  // namespace colibri
