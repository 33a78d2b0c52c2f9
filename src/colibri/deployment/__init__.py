"""Turns options into a running deployment: a model, its workers, the router and the engine.

Belongs here: the options, as frozen dataclasses (`options`, `cluster`, `pinning`, `state`); what is decided from
them before anything starts (`devices`, `mix`, `places`, `start`, `compute_mode`); `assemble`, which wires the parts,
and `assemble_router` for workers that run already; `running`, the deployment and how it ends. Does not belong here:
how options are spelled or printed (`colibri.cli`), and what the parts do (`colibri.coordinator`, `colibri.cluster`).

`pinning` and `expert_place` import neither NumPy nor gRPC: a worker settles on its CPUs before it loads them.
"""
