"""`make sanitize MODE=address` finds faults: those of faults.cpp, made on purpose, in a process each."""

from __future__ import annotations

import pytest

from tests.sanitize.planted import MODE, run

pytestmark = pytest.mark.skipif(MODE != "address", reason="needs the build of `make sanitize MODE=address`")
#: Function of faults.cpp and its integers -> what the report says.
FAULTS = {
    "read 8": "heap-buffer-overflow",
    "read -1": "heap-buffer-overflow",
    "write 8": "heap-buffer-overflow",
    "use_after_free 3": "heap-use-after-free",
    "on_the_stack 4": "out of bounds",
    "sum 2147483647 1": "signed integer overflow",
    "shift 1 32": "shift exponent 32 is too large",
    "misaligned": "misaligned address",
}
SCRIPT = """
x = np.arange(8, dtype=np.float32)
assert (faults.read(x, 7), faults.sum(1, 2), faults.on_the_stack(3)) == (7.0, 3, 4)
print("begin", flush=True)
name, *values = sys.argv[2].split()
arrays = [x] if name in ("read", "write", "misaligned") else []
print(getattr(faults, name)(*arrays, *map(int, values)))
"""


@pytest.mark.parametrize("call", FAULTS)
def test_faults_are_found(call: str) -> None:
    done = run(SCRIPT, call)
    assert done.stdout == "begin\n"
    assert done.returncode
    assert FAULTS[call] in done.stderr, done.stderr[-2000:]
    assert "faults.cpp" in done.stderr


def test_what_is_right_passes() -> None:
    done = run(SCRIPT, "read 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "begin\n0.0\n", "")
