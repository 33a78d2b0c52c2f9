"""Guard every handler of a server: who may call, places for calls, bounds on what callers owe, typed errors.

By itself, grpc's server reads the message of a unary call on a thread of its pool, before any of our code, for as
long as the caller likes. On the wire a unary call is a stream of one message. So every call is served as a stream
here: it is refused before anything is read, and reads its message in a place that has a time bound.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from colibri.errors import Busy, ColibriError, InvalidInput
from colibri.rpc.door import Door
from colibri.rpc.places import Place, Places, Wait
from colibri.rpc.reading import Deserializer, Reading, Size
from colibri.rpc.refusals import Refusals, Send
from colibri.rpc.status import abort
from colibri.security.access import Access

_log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
#: What a handler does with the request, or with an iterator of requests.
Behaviour = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Lane:
    """Where calls run.

    access: None: anybody may call, and a call that finds no place is refused as strangers are elsewhere.
    rest: what a stream of replies waits for between two of them.
    """

    places: Places
    pool: ThreadPoolExecutor
    access: Access | None
    rest: Wait = Wait.NOTHING


class Guard(grpc.ServerInterceptor):
    """Intercepts all calls of a server.

    name: of the server, in refusals.
    lanes: /package.Service/Method -> lane, for methods that do not run in `common`.
    quiet: methods whose callers may send nothing for as long as they like.
    sizes: /package.Service/Method -> what a unary call takes.
    """

    def __init__(
        self,
        name: str,
        common: Lane,
        lanes: dict[str, Lane],
        quiet: frozenset[str],
        refusals: Refusals,
        door: Door,
        sizes: Mapping[str, Size],
    ) -> None:
        self._sizes = sizes
        self._reading = Reading()
        self._name = name
        self._common = common
        self._lanes = lanes
        self._quiet = quiet
        self._refusals = refusals
        self._door = door

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        lane = self._lanes.get(method, self._common)
        caller = ""
        if lane.access is not None:
            metadata = handler_call_details.invocation_metadata or ()
            refusal = lane.access.at_arrival(method, metadata)
            if refusal is not None:
                return _made(handler, self._refuse(refusal), None, self._door, blocks=False)
            caller = lane.access.token_of(metadata)
        call = _Call(
            self._name, method, handler, lane, caller, method in self._quiet, self._read(method, handler)
        )
        read = handler.request_deserializer if handler.request_streaming else None
        if lane.access is None:
            return _made(handler, self._open_to_all(call, lane.pool), read, self._door, blocks=False)
        return _made(handler, call.replies if handler.response_streaming else call.reply, read, lane.pool)

    def _read(self, method: str, handler: Handler) -> Callable[[bytes], Any]:
        """Returns what reads the message of a unary call."""
        read, size = handler.request_deserializer, self._sizes.get(method, Size())
        return lambda data: self._reading.message(data, read, size)

    def _refuse(self, refusal: ColibriError) -> Callable[..., None]:
        """Returns a behaviour that refuses the call: it reads nothing of the request and takes no place."""

        def refuse(requests: Iterator[Any], context: grpc.ServicerContext, send: Send) -> None:
            self._refusals.refuse(context, refusal, send)

        return refuse

    def _open_to_all(self, call: _Call, pool: ThreadPoolExecutor) -> Callable[..., None]:
        def enter(requests: Iterator[Any], context: grpc.ServicerContext, send: Send) -> None:
            try:
                place = call.enter(context)
            except Busy as error:
                self._refusals.refuse(context, error, send)
                return
            pool.submit(serve, requests, context, send, place)

        def serve(requests: Iterator[Any], context: grpc.ServicerContext, send: Send, place: Place) -> None:
            # The end is sent in any case: with the error that an aborted call has been given.
            with contextlib.suppress(Exception):
                for reply in call.replies(requests, context, place):
                    send(reply)
            send(None)

        return enter


class _Call:
    """One call, on its own thread."""

    def __init__(
        self,
        name: str,
        method: str,
        handler: Handler,
        lane: Lane,
        caller: str,
        quiet: bool,
        read: Callable[[bytes], Any],
    ) -> None:
        self._name = name
        self._method = method
        self._behaviour = _behaviour(handler)
        self._takes_stream = handler.request_streaming
        self._gives_stream = handler.response_streaming
        self._lane = lane
        self._caller = caller
        self._quiet = quiet
        self._read = read

    def enter(self, context: grpc.ServicerContext) -> Place:
        """Takes a place for the call. Raises PermissionDenied and Busy."""
        access, caller = self._lane.access, self._caller
        if access is not None:
            access.at_start(self._method, context)
            caller = caller or access.certificate_of(context)
        return self._lane.places.enter(context, caller)

    def reply(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Serves a call with one reply."""
        place: Place | None = None
        try:
            place = self.enter(context)
            return self._behaviour(self._argument(requests, place), context)
        except ColibriError as error:
            abort(context, error)
        except Exception as error:
            self._unexpected(context, error)
        finally:
            if place is not None:
                place.leave()

    def replies(
        self, requests: Iterator[Any], context: grpc.ServicerContext, place: Place | None = None
    ) -> Iterator[Any]:
        """Serves a call with a stream of replies. place: one that was taken already."""
        try:
            place = place or self.enter(context)
            found = self._behaviour(self._argument(requests, place), context)
            if self._quiet:
                yield from found
                return
            for reply in found if self._gives_stream else (found,):
                place.waits(Wait.READER)
                yield reply
                place.waits(self._lane.rest)
            place.waits(Wait.NOTHING)
        except ColibriError as error:
            abort(context, error)
        except Exception as error:
            self._unexpected(context, error)
        finally:
            if place is not None:
                place.leave()

    def _argument(self, requests: Iterator[Any], place: Place) -> Any:
        if not self._takes_stream:
            return _only(requests, place, self._read)
        if self._quiet:
            place.waits(Wait.NOTHING)
            return requests
        return _bounded(requests, place)

    def _unexpected(self, context: grpc.ServicerContext, error: Exception) -> None:
        # context.abort and a broken stream also arrive here, as bare exceptions that grpc itself must see. It would
        # tell the caller the text of any other.
        if (type(error) is Exception and not error.args) or (
            isinstance(error, grpc.RpcError) and not context.is_active()
        ):
            raise error
        _log.error("%s: unexpected error in a call", self._name, exc_info=error)
        abort(
            context, ColibriError(f"{self._name}: internal error ({type(error).__name__})", peer=self._name)
        )


def _only(requests: Iterator[bytes], place: Place, read: Callable[[bytes], Any]) -> Any:
    """Returns the message of a unary call."""
    for data in requests:
        place.waits(Wait.NOTHING)
        return read(data)
    raise InvalidInput("request", "one message", "none")


def _bounded(requests: Iterator[Any], place: Place) -> Iterator[Any]:
    """Yields the messages of a stream; the caller may owe none of them for long."""
    while True:
        place.waits(Wait.MESSAGE)
        try:
            request = next(requests)
        except StopIteration:
            return
        finally:
            place.waits(Wait.NOTHING)
        yield request


def _behaviour(handler: Handler) -> Behaviour:
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if found is None:
        raise TypeError("a handler without behaviour")
    return found


def _made(
    handler: Handler,
    behaviour: Behaviour,
    read: Deserializer | None,
    pool: ThreadPoolExecutor,
    *,
    blocks: bool = True,
) -> Handler:
    """Makes a handler that takes a stream of requests, on the threads of `pool`.

    blocks: False: the behaviour sends its replies and the end itself, through a third argument, perhaps after it
        returned.
    """

    def call(*arguments: Any) -> Any:
        return behaviour(*arguments)

    # Read by grpc's server off the behaviour.
    call.experimental_thread_pool = pool  # type: ignore[attr-defined]
    call.experimental_non_blocking = not blocks  # type: ignore[attr-defined]
    make = (
        grpc.stream_stream_rpc_method_handler
        if handler.response_streaming or not blocks
        else grpc.stream_unary_rpc_method_handler
    )
    return make(call, read, handler.response_serializer)
