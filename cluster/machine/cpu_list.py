"""The kernel's CPU list format, as in sysfs and cgroup files: `0-3,8,10-11`; an empty line is no CPU.

Format: https://docs.kernel.org/admin-guide/cputopology.html
"""

from __future__ import annotations

from collections.abc import Iterable

from colibri.errors import InvalidInput

#: Far above any kernel's NR_CPUS: bounds what a damaged line can make us allocate.
MAX_CPU = 1 << 16


def parse_cpu_list(text: str, field: str = "cpu list") -> tuple[int, ...]:
    """Ids in ascending order, each once. Raises InvalidInput naming `field` where the text is not such a
    list."""
    ids: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.strip().split(","))):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise InvalidInput(field, "a list of ids and ranges such as 0-3,8", text.strip())
        low = int(first)
        high = int(last) if dash else low
        if not low <= high <= MAX_CPU:
            raise InvalidInput(field, f"ranges that ascend, ids up to {MAX_CPU}", text.strip())
        ids.update(range(low, high + 1))
    return tuple(sorted(ids))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Shortest form: runs as ranges. The inverse of `parse_cpu_list`."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
