"""Checks and timings of the CUDA backend.

Belongs here: `gpu_check.py`, which runs from source on a bare GPU machine; the Reach lines, which need no GPU. Does not
belong here: kernels, and the emulation (tests/support/cuda)."""
