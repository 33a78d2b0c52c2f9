// GCC 12's thread sanitiser does not know pthread_mutex_clocklock, which std::timed_mutex calls; its next sibling it does.
#include <pthread.h>
#include <time.h>

// Weak and hidden: each part of a module may bring its own, and no other module sees it.
extern "C" __attribute__((weak, visibility("hidden"))) int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr long long kSecond = 1000000000;
  timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const long long left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  const long long end = real.tv_sec * kSecond + real.tv_nsec + (left > 0 ? left : 0);
  const timespec limit{time_t(end / kSecond), long(end % kSecond)};
  return pthread_mutex_timedlock(mutex, &limit);
}
