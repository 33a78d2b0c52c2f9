"""Whole requests: admission, step scheduler, decoder stack with its KV cache, sampling, the service
Generation.

A request's life: `servicer` takes the message, `validate` makes a request of it, `engine` queues, admits
and runs it in steps (`scheduler`, `step_batch`, `decoder`), `handle` carries the tokens back to the
servicer's thread.

Belongs here: everything that knows of requests, tokens and the KV cache. Does not belong here: where
experts live and how rows reach them (colibri.router_service, behind `moe_layer`), mathematics
(colibri.kernels), files (colibri.models).
"""
