"""The expert worker: gRPC service `Expert`, weight store, execution queue, pinning, the worker process.

Belongs here: everything that one worker process does. Does not belong here: which experts a worker gets,
starting workers (colibri.cluster), the mathematics (colibri.kernels), the frames (colibri.wire).

This file imports nothing: a worker pins itself before NumPy and grpc are loaded (worker.py).
"""
