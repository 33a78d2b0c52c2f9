"""One MoE layer: gate, plan, dispatch to the workers, collect, merge; and the gRPC service Router around it."""
