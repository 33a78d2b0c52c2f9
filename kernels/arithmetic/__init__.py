"""Arithmetic of docs/numerics.md that more than one part needs, exact to the bit, on plain NumPy arrays.

Belongs here: rounding to fp32 and bf16 and the exponential function (`floats`), the logarithm (`log64`), random
numbers (`philox`), and the table of RoPE angles (`rope_table`).

Does not belong here: whole kernels (`colibri.kernels.reference` has them in NumPy).
"""
