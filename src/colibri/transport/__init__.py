"""Links between a router and a worker: bytes out, bytes in, bounded waits.

Belongs here: the Link interface (`link`), its two implementations (`grpc_stream`, `shared_memory`), and whether two
processes can share memory (`host`).

Does not belong here: what the bytes mean (`colibri.wire`), addresses (`colibri.address`) and options of gRPC
(`colibri.grpc_options`), retries, placement.
"""
