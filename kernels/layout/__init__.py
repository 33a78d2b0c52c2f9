"""The packed layout of weights, as docs/numerics.md has it: the bytes that kernels read and packs hold.

Belongs here: packing and unpacking matrices and experts and their sizes (`packing`; int8 and int4 in
`quant_packing`), and memory that is aligned for them (`aligned`). The C++ backend writes the same bytes itself.

Does not belong here: which numbers a weight is quantised to (`colibri.kernels.reference.quantising`), and files
(`colibri.models.packs`).
"""
