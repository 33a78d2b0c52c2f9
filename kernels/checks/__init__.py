"""Check the arguments of kernels, for every backend that is written in Python.

Belongs here: checks of arrays, formats and modes (`arrays`) and of what one kernel takes (`attention`, `units`,
`sampling`). Each raises TypeError or ValueError that names the argument, what was expected and what came.

Does not belong here: computing anything, and what comes off the network (`colibri.wire`).
"""
