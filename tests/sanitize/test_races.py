"""`make sanitize MODE=thread` finds races: those of races.cpp, made on purpose, in a process each."""

from __future__ import annotations

import pytest

from tests.sanitize.planted import MODE, run

pytestmark = pytest.mark.skipif(MODE != "thread", reason="needs the build of `make sanitize MODE=thread`")
RACE = "WARNING: ThreadSanitizer: data race"
#: Call of races.cpp -> what the report says.
FAULTS = {
    "without_a_lock(1000)": RACE,
    "published_relaxed()": RACE,
    "locked_in_both_orders()": "WARNING: ThreadSanitizer: lock-order-inversion",
    "on_python_threads(faults.add_released)": RACE,
}
RIGHT = (
    "with_a_lock(1000)",
    "with_atomics(1000)",
    "published_rightly()",
    "on_python_threads(faults.add_held)",
)
#: Both threads must live at once: one that has ended is joined before the next begins, and that is an order.
SCRIPT = """
import threading
def on_python_threads(add):
    both = threading.Barrier(2)
    def work():
        both.wait(60)
        for _ in range(200):
            add(200_000)
        both.wait(60)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print("begin", flush=True)
call = sys.argv[2]
eval(call if call.startswith("on_python_threads") else "faults." + call)
print("end", flush=True)
"""


@pytest.mark.parametrize("call", FAULTS)
def test_races_are_found(call: str) -> None:
    done = run(SCRIPT, call)
    assert done.stdout == "begin\n"
    assert done.returncode == 66
    assert FAULTS[call] in done.stderr, done.stderr[-2000:]
    assert "races.cpp" in done.stderr


@pytest.mark.parametrize("call", RIGHT)
def test_what_is_right_passes(call: str) -> None:
    done = run(SCRIPT, call)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begin\nend\n", "")
