"""Make a backend by its name."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.kernels.api import Backend


def make_backend(
    name: str = "cpu",
    *,
    threads: int | None = None,
    isa: str | None = None,
    cpus: Sequence[int] | None = None,
) -> Backend:
    """Makes a compute backend.

    name: 'cpu' or 'reference'.
    threads: size of the pool, the caller included; None: one per CPU in `cpus`, or of the process's mask.
    isa: instruction path; None: $COLIBRI_ISA, else the best that the machine has.
    cpus: CPUs to which the pool's threads are pinned, one after another.

    The reference backend has one thread and one path; anything else is an error. Raises ValueError for an unknown
    name, or a value that the backend cannot satisfy.
    """
    if name == "cpu":
        from colibri.kernels.cpu.backend import CpuBackend

        return CpuBackend(threads=threads, isa=isa, cpus=cpus)
    if name == "reference":
        from colibri.kernels.reference import ReferenceBackend

        for argument, value, allowed in (
            ("threads", threads, 1),
            ("isa", isa, ReferenceBackend.isa),
            ("cpus", cpus, None),
        ):
            if value is not None and value != allowed:
                raise ValueError(
                    f"{argument}: expected {allowed!r} or None for the reference backend, got {value!r}"
                )
        return ReferenceBackend()
    raise ValueError(f"name: expected 'cpu' or 'reference', got {name!r}")
