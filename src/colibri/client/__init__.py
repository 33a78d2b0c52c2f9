"""Call Colibri's servers from Python.

Belongs here: the clients of Generation (`Client`, and `AsyncClient` for asyncio), what both share (options,
messages, retries, resuming an answer), and `remote_moe`, which runs the experts of a transformers model in a
cluster. Does not belong here: anything that a server needs. torch is the caller's: nothing here imports it before
`remote_moe` is called.
"""

from colibri.client.aio import AsyncClient, AsyncEventStream
from colibri.client.answer import Answer, Answers, collect
from colibri.client.messages import Defaults, ModelInfo, Tokenized
from colibri.client.options import Message, PromptLike, RequestOptions
from colibri.client.remote_moe import RemoteMoe, remote_moe
from colibri.client.retry import Retry
from colibri.client.stream import EventStream
from colibri.client.sync import Client
from colibri.security.channel import ChannelSecurity

__all__ = [
    "Answer",
    "Answers",
    "AsyncClient",
    "AsyncEventStream",
    "ChannelSecurity",
    "Client",
    "Defaults",
    "EventStream",
    "Message",
    "ModelInfo",
    "PromptLike",
    "RemoteMoe",
    "RequestOptions",
    "Retry",
    "Tokenized",
    "collect",
    "remote_moe",
]
