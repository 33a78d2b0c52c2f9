"""A client in any language needs no file of Colibri's: it asks the server for its own descriptors (gRPC reflection).

    python reflection_client.py HOST:PORT 1,2,3

Needs grpcio, grpcio-reflection and numpy only. Sends the token ids to Generation.Generate, and one row of hidden
states to Router.Forward, and prints both answers as one line of JSON.
"""

import json
import sys

import grpc
import numpy as np
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class Service:
    """The methods of one service, as the server describes them."""

    def __init__(self, channel, pool, name):
        self._channel, self._name = channel, name
        self._methods = pool.FindServiceByName(name).methods_by_name

    def call(self, method, **fields):
        found = self._methods[method]
        request = GetMessageClass(found.input_type)(**fields)
        kind = self._channel.unary_stream if found.server_streaming else self._channel.unary_unary
        stub = kind(
            f"/{self._name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(found.output_type).FromString,
        )
        return stub(request, timeout=60)


def main():
    target, ids = sys.argv[1], [int(text) for text in sys.argv[2].split(",")]
    with grpc.insecure_channel(target) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        generation = Service(channel, pool, "colibri.v1.Generation")
        router = Service(channel, pool, "colibri.v1.Router")

        answer = {"ids": [], "receipts": []}
        sampling, stopping = {"temperature": 0}, {"max_tokens": 8, "ignore_eos": True}
        for reply in generation.call(
            "Generate", token_ids={"ids": ids}, sampling=sampling, stopping=stopping
        ):
            if reply.WhichOneof("event") == "tokens":
                answer["ids"] += reply.tokens.ids
                answer["receipts"] += [f"{receipt:016x}" for receipt in reply.tokens.receipts]

        hidden = router.call("RouterInfo").hidden
        row = np.random.default_rng(1).standard_normal((1, hidden), dtype=np.float32)
        merged = router.call("Forward", layer=0, rows=1, hidden=hidden, data=row.tobytes()).data
    print(json.dumps({"generate": answer, "forward": np.frombuffer(merged, np.float32).tolist()}))


if __name__ == "__main__":
    main()
