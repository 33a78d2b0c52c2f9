"""Whole requests: the service Generation, the engine and its steps, decoder stack, KV cache and sampling.

A request's life: `servicer` takes the message, `validation` makes a request of it, `engine` queues it and runs it in
steps (`scheduling`, `step_batch`, `decoder`), `handle` carries the tokens back to the servicer's thread.

Belongs here: everything that knows of requests, tokens and the KV cache.

Does not belong here: where experts live and how rows reach them (`colibri.router_service`, behind `moe_layer`),
mathematics (`colibri.kernels`), files (`colibri.models`).
"""
