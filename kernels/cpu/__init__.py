"""The CPU backend: C++ kernels behind `CpuBackend` (backend.py).

Belongs here: the C++ sources of the extension module `colibri.kernels._native`, and thin Python over it: the class
CpuBackend, and a check of packed scales that needs no backend (scales.py). Does not belong here: what the functions
compute (docs/numerics.md), models, files, transports.
"""
