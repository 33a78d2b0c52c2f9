"""The worker: weight store, execution queue, pinning, and the gRPC service Expert around them."""
