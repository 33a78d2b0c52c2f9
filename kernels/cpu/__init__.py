"""The CPU backend: C++ kernels behind `CpuBackend` (backend.py).

Belongs here: the C++ sources of the extension module `colibri.kernels._native` and what is thin Python over it: that
class, and a look at packed scales that needs no backend (scales.py). Does not belong here: what the functions compute
(docs/numerics.md), models, files, transports.
"""
