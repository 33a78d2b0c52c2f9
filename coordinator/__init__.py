"""Whole requests: admission, step scheduler, decoder stack with its KV cache, sampling, and the gRPC service Generation."""
