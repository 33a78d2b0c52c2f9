"""Bad input: the whole table of tests/integration/bad_input, by loaders, by every command and against a real server;
its memory over 200 repetitions, and over 10,000 cancelled streams.

`python -m benchmarks.surface.bad_inputs` prints the list of bad inputs with their error texts (docs/errors.md).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Line, Outcome
from tests.integration.bad_input import checkpoints, commands
from tests.integration.bad_input.case import MODEL
from tests.integration.bad_input.checkpoint_case import CheckpointCase
from tests.integration.bad_input.commands import CommandCase
from tests.integration.bad_input.connections import (
    cancelled,
    junk,
    killed_client,
    receipts,
    seconds_of_all_choices,
    seconds_to_run_out,
    slow_readers,
    threads_of,
    until_idle,
)
from tests.integration.bad_input.folders import copy, good
from tests.integration.bad_input.frames import FrameCase
from tests.integration.bad_input.live import Live, live, open_fds
from tests.integration.bad_input.page import page
from tests.integration.bad_input.refused import by_command, by_loaders, verbs_for
from tests.integration.bad_input.requests import CallCase
from tests.integration.bad_input.thrown import Targets, all_cases, targets, throw

REPETITIONS = 200
CANCELLED = 10_000
#: What gRPC and the allocator may still take after the warm-up, over a hundred thousand requests.
MEMORY_BYTES = 16 << 20
PEERS = 40


@contextmanager
def server() -> Iterator[Live]:
    with tempfile.TemporaryDirectory() as folder, live(Path(folder)) as found:
        yield found


def folders_and_commands() -> tuple[int, int, list[str]]:
    """Cases, processes started, and what was not as it must be."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        source = good(root / "good")

        def checkpoint(case: CheckpointCase) -> tuple[int, list[str]]:
            folder = copy(source, root / case.id)
            case.damage(folder)
            refused = by_loaders(case, folder)
            found = [f"{case.id}: loaders: {refused}"] if refused else []
            lines = verbs_for(case, folder)
            for arguments in lines:
                noisy = case.id == "tokenizer-panics"
                problem = by_command(arguments, case.refusal, folders={str(folder): MODEL}, noisy=noisy)
                if problem:
                    found.append(f"{case.id}: {arguments[0]}: {problem}")
            return len(lines), found

        def command(case: CommandCase) -> tuple[int, list[str]]:
            folder = root / case.id
            folder.mkdir()
            problem = case.tried(source, folder)
            return 1, [f"{case.id}: {problem}"] if problem else []

        with ThreadPoolExecutor(2) as pool:
            found = [*pool.map(checkpoint, checkpoints.CASES), *pool.map(command, commands.CASES)]
    return len(found), sum(count for count, _ in found), [problem for _, some in found for problem in some]


def precise() -> Outcome:
    """Every input once by every way it can come in; a good request after each one that a server got."""
    begun = time.monotonic()
    count, processes, problems = folders_and_commands()
    died = 0
    with server() as found, targets(found) as against:
        cases = all_cases(against)
        for case in cases:
            problem = throw(against, case)
            harm = found.harm()
            problems += [one for one in (problem, f"{case.id}: {harm}" if harm else "") if one]
            died += bool(harm)
    total = count + len(cases)
    hung = sum("did not end within" in problem or "DEADLINE" in problem for problem in problems)
    share = 100 * (1 - len(problems) / (processes + len(cases)))
    return Outcome(
        f"{total} inputs, {processes} commands, {len(cases)} calls and frames each followed by a good request: "
        f"{share:.1f} % precise, {died} harmed, {hung} hung",
        not problems,
        "",
        {"problems": problems, "seconds": round(time.monotonic() - begun, 1), "list": page().splitlines()},
    )


def memory() -> Outcome:
    """The whole table 200 times against one server and its workers, after a quarter as many to warm up."""
    with server() as found, targets(found) as against:
        cases = all_cases(against)
        _rounds(against, cases, REPETITIONS // 4)
        before = found.resident()
        problems = _rounds(against, cases, REPETITIONS)
        after = found.resident()
        harm = found.harm()
    grown = {process: after[process] - before[process] for process in before}
    worst = max(grown.values())
    thrown = REPETITIONS * len(cases)
    return Outcome(
        f"{worst / 2**20:+.1f} MiB in the worst of {len(grown)} processes over {thrown} bad inputs "
        f"({worst / thrown:+.0f} bytes each)",
        worst < MEMORY_BYTES and not problems and not harm,
        "",
        {"grown": grown, "problems": problems[:20], "harm": harm},
    )


def _rounds(against: Targets, cases: list[CallCase | FrameCase], count: int) -> list[str]:
    """Megabytes are sent a tenth as often as the rest."""
    problems = []
    for number in range(count):
        for case in cases:
            if isinstance(case, FrameCase) or not case.heavy or number % 10 == 0:
                problems.append(throw(against, case))
    return [problem for problem in problems if problem]


def cancels() -> Outcome:
    """10,000 answers begun and cancelled, before anything came, after Accepted, or after the first tokens."""
    with server() as found:
        pid = found.serve.process.pid
        # Three times as many at once: the pool of threads that serve calls has grown to what it needs.
        cancelled(found, CANCELLED // 10, at_once=48)
        until_idle(found)
        before, fds, threads = found.resident(), open_fds(pid), threads_of(pid)
        begun = time.monotonic()
        cancelled(found, CANCELLED)
        seconds = time.monotonic() - begun
        idle = until_idle(found)
        after, harm = found.resident(), found.harm()
        more_fds, more_threads = open_fds(pid) - fds, threads_of(pid) - threads
    worst = max(after[process] - size for process, size in before.items())
    return Outcome(
        f"{worst / 2**20:+.1f} MiB, {more_fds:+d} descriptors, {more_threads:+d} threads after {CANCELLED} cancelled "
        f"in {seconds:.1f} s; idle {idle:.2f} s later",
        worst < MEMORY_BYTES and more_fds <= 4 and more_threads <= 4 and not harm,
        "",
        {"harm": harm},
    )


def peers() -> Outcome:
    """Peers that are killed, do not read, or speak no gRPC."""
    with server() as found:
        whole = seconds_of_all_choices(found)
        gone = []
        for number in range(5):
            killed_client(found, f"gone{number}")
            gone.append(seconds_to_run_out(found, f"gone{number}"))
        junk(found, PEERS)
        with slow_readers(found, 8) as streams:
            time.sleep(1.0)
            harm = found.harm()
            lengths = {len(receipts(stream)) for stream in streams}
        harm = harm or found.harm()
    return Outcome(
        f"a killed client's 16 choices end {max(gone) * 1000:.0f} ms after it (read to their end they take "
        f"{whole * 1000:.0f} ms); 8 slow readers got all of their answers; others undisturbed",
        max(gone) < whole / 3 and lengths == {480} and not harm,
        "",
        {"gone_s": gone, "whole_s": whole, "harm": harm},
    )


def lines() -> list[Line]:
    return [
        Line("bad-inputs", "every bad input, every way in", "100 % precise errors, 0 dead, 0 hangs", precise),
        Line("bad-memory", f"the table {REPETITIONS} times", f"below {MEMORY_BYTES >> 20} MiB", memory),
        Line("bad-cancelled", f"{CANCELLED} cancelled streams", "memory, descriptors, threads flat", cancels),
        Line("bad-peers", "killed clients, slow readers, junk", "gone at once, nothing lost, no harm", peers),
    ]


if __name__ == "__main__":
    print(page())
