"""The command line, the topmost layer: reads checkpoints, starts services, prints.

Belongs here: one module per verb (`demo`, `generate`, `serve`, `inspect`, `expert`, `router`), each with
`add_arguments` and `run`; `assemble`, the one place where the parts become a deployment; how things look
(`phases`, `progress`, `answer`). Does not belong here: anything that another program would want to call.

Modules import the standard library and each other at the top, everything else inside `run`: `colibri --help`
must not wait for gRPC and NumPy.
"""
