"""One MoE layer: gate, plan, dispatch to the workers, collect, merge; and the gRPC service Router around it.

Belongs here: which rows go to which worker, the messages and waits that follow, and the merge. Does not belong
here: how experts are computed or loaded, where they are placed, the rest of a decoder layer.
"""
