"""The CPU backend: C++ kernels behind `CpuBackend` (backend.py).

Belongs here: the C++ sources of the extension module `colibri.kernels._native` and the thin Python class
over it. Does not belong here: what the functions compute (docs/numerics.md), models, files, transports.
"""
