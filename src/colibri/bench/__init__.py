"""Measures deployments and breaks them on purpose. Nothing that serves imports it: it is loaded when it is asked for.

Belongs here: the load harness (`load`), the chaos driver (`chaos`), the benches of kernels, models, quality and
servers, and the engine that knows what answers must be (`expected`, `oracle_engine`). Does not belong here: options
and tables (`colibri.cli`), comparisons with other programs (`benchmarks/` in the repository), and whatever a
deployment needs to serve.
"""
