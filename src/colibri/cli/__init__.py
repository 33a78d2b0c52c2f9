"""The command line, the topmost layer: reads checkpoints, starts services, prints.

Belongs here: `verbs`, the table of all verbs; one module per verb with `add_arguments` and `run` (a group, as
`bench` or `config`, has a table of its own); `settings`, which brings options from flags, environment and file
together; `model`, which locates what is called `demo`; `assembled`, which starts a deployment for a verb; `signals`,
how verbs end when they are told to; how things look (`progress`, `answer`); `docs`, which writes the pages of
docs/cli. Does not belong here: anything that another program would want to call.

A verb's module is imported when the verb is used. It imports the standard library and light modules of this folder
at the top, everything else inside `run`: `colibri --help` and every refusal must not wait for gRPC and NumPy.
"""
