"""A real server of the service Generation in this process, on a unix socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colibri.client import Client
from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.servicer import GenerationServicer, ServedModel
from colibri.models.chat_renderer import load_chat_renderer
from colibri.rpc.server import build_server
from tests.support.tiny_engine import WAIT_S, TinyModel


@dataclass(slots=True)
class Served:
    target: str
    client: Client
    engine: Engine


@contextmanager
def serve(
    model: TinyModel,
    folder: Path,
    options: EngineOptions,
    moe: MoeLayer | None = None,
    reader_timeout_s: float = 60.0,
) -> Iterator[Served]:
    checkpoint = model.checkpoint
    card = ServedModel("tiny", checkpoint.model_hash(), checkpoint.config, checkpoint.generation)
    with model.engine(options, moe) as engine:
        chat = load_chat_renderer(checkpoint.folder, model.tokenizer)
        servicer = GenerationServicer(
            engine, model.tokenizer, card, chat=chat, reader_timeout_s=reader_timeout_s
        )
        server = build_server(
            [servicer.service()],
            listen=f"unix:{folder / 's'}",
            max_calls=servicer.max_calls,
            name="coordinator",
        )
        server.start()
        server.set_serving(True)
        with Client(server.target, timeout_s=WAIT_S) as client:
            try:
                client.wait_ready(WAIT_S)
                yield Served(server.target, client, engine)
            finally:
                server.stop(0)
                servicer.close()
