"""What `colibri bench kernels` measures: one module per group of kernels, each yielding cases; how cases are timed
against the machine's limits; what is told.

Belongs here: weights and inputs made for a clock, and the clock. Does not belong here: kernels, whole models.
"""
