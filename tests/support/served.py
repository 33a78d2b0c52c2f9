"""A real server of the service Generation in this process, on a unix socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from colibri.client import ChannelSecurity, Client
from colibri.cluster.operator.cluster_status import StatusSources
from colibri.cluster.operator.operator_service import OperatorServicer
from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.servicer import GenerationServicer, ServedModel
from colibri.models.chat_renderer import load_chat_renderer
from colibri.placement import Membership, spread
from colibri.rpc.places import Bounds
from colibri.rpc.server import build_server
from colibri.security.server import ServerSecurity
from tests.support.tiny_engine import NUMERICS, WAIT_S, TinyModel


@dataclass(slots=True)
class Served:
    target: str
    client: Client
    engine: Engine
    generation: GenerationServicer


@contextmanager
def serve(
    model: TinyModel,
    folder: Path,
    options: EngineOptions,
    moe: MoeLayer | None = None,
    reader_timeout_s: float = 60.0,
    *,
    listen: str = "",
    security: ServerSecurity | None = None,
    shown: ChannelSecurity | None = None,
    bounds: Bounds | None = None,
) -> Iterator[Served]:
    """listen: an address in place of a unix socket; security: what the server asks for; shown: what the client shows;
    bounds: how long callers may keep the server waiting.
    The service Operator is there for its status alone."""
    checkpoint = model.checkpoint
    card = ServedModel("tiny", checkpoint.model_hash(), checkpoint.config, checkpoint.generation)
    with model.engine(options, moe) as engine:
        chat = load_chat_renderer(checkpoint.folder, model.tokenizer)
        servicer = GenerationServicer(
            engine, model.tokenizer, card, chat=chat, reader_timeout_s=reader_timeout_s
        )
        placement = spread(checkpoint.config.layers, checkpoint.config.experts, ["local"])
        sources = StatusSources(
            model=card.name,
            expert_numerics_id=NUMERICS.expert.id,
            membership=lambda: Membership(placement, {}),
            engine=engine.stats,
            workers=None,
            view=None,
            routing=None,
            health=None,
        )
        server = build_server(
            [servicer.service(), OperatorServicer(sources, None).service()],
            listen=listen or f"unix:{folder / 's'}",
            max_calls=servicer.max_calls,
            name="coordinator",
            security=security,
            bounds=bounds,
        )
        server.start()
        server.set_serving(True)
        with Client(server.target, timeout_s=WAIT_S, security=shown) as client:
            try:
                client.wait_ready(WAIT_S)
                yield Served(server.target, client, engine, servicer)
            finally:
                server.stop(0)
                servicer.close()
