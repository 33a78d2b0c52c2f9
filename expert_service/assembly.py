"""Put one worker's parts together, inside a process that is already pinned."""

from __future__ import annotations

import os
import threading
from functools import partial

from colibri.errors import ConfigError
from colibri.expert_service.config import WorkerConfig
from colibri.expert_service.counters import Counters
from colibri.expert_service.epochs import Epochs
from colibri.expert_service.execute import run_units
from colibri.expert_service.faults import Faults
from colibri.expert_service.faults_servicer import FaultsServicer
from colibri.expert_service.gpu_options import BLOCK_SIZE, DMA_BUFFER_BYTES
from colibri.expert_service.queue import ExecutionQueue
from colibri.expert_service.servicer import ExpertServicer, Identity
from colibri.expert_service.store import WeightStore
from colibri.expert_service.stream import RunUnits, Worker
from colibri.expert_service.warm_up import warm_up
from colibri.grpc_options import server_options
from colibri.kernels.api import Backend, ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.location import split_pin
from colibri.models.model import check_mode, expert_numerics, for_use, formats, open_model, warn_of_texts
from colibri.rpc.server import RpcServer, build_server
from colibri.security.public_text import hide
from colibri.wire.limits import FrameLimits

#: Control calls (handshake, load, retire, status, reflection) that may run beside the streams.
_CONTROL_CALLS = 16
#: The queue holds as many bytes as this many of the largest requests, at least _MIN_QUEUE_BYTES.
_LARGEST_REQUESTS = 4
_MIN_QUEUE_BYTES = 16 << 20
_STOP_S = 0.5


class WorkerServer:
    """A worker that listens. `start` makes it answer; `stop` drains it."""

    def __init__(
        self, config: WorkerConfig, *, backend: Backend | None = None, run: RunUnits | None = None
    ) -> None:
        """backend: computes units; None: make the configured one.
        run: computes a message's units; None: colibri.expert_service.execute.

        Raises CheckpointError, ConfigError.
        """
        model = for_use(open_model(config.model))
        warn_of_texts(model)
        shapes = model.config
        mode = ComputeMode(config.compute_mode)
        check_mode(model, mode)
        kind = formats(model, mode)[0]
        if config.gpu.int4_on is not None and kind.dtype != "int4":
            raise ConfigError("--int4-on", "a pack of int4 experts", f"{kind.name} experts")
        limits = FrameLimits(
            shapes.layers, shapes.experts, shapes.top_k, shapes.hidden, config.compute_mode, config.max_rows
        )
        hide(split_pin(config.model)[0])
        self._backend = _make_backend(config) if backend is None else backend
        self.store = WeightStore(model, self._backend, mode, config.memory)
        max_bytes = max(_MIN_QUEUE_BYTES, _LARGEST_REQUESTS * limits.max_request_bytes)
        worker = Worker(
            name=config.name,
            incarnation=config.incarnation,
            limits=limits,
            run=partial(run_units, self._backend, self.store) if run is None else run,
            queue=ExecutionQueue(config.max_queued, max_bytes),
            max_requests=config.max_queued,
            max_bytes=max_bytes,
            epochs=Epochs(),
            counters=Counters(),
            draining=threading.Event(),
            faults=Faults() if config.allow_faults else None,
        )
        family = self._backend.isa if self._backend.name == "cuda" else "any"
        numerics = expert_numerics(model, self._backend.name, mode, family)
        identity = Identity(
            model_hash=model.model_hash(),
            pack_hash=model.pack_hash,
            expert_numerics_id=numerics.id,
            isa=self._backend.isa,
            compute_threads=self._backend.threads,
            numa_node=config.numa_node,
            oversubscribed=config.oversubscribed,
            crossing=config.crossing,
            shares_memory=config.share_memory,
        )
        self.worker = worker
        # Weights for a GPU are packed by a CPU: the same bytes.
        on_gpu = self._backend.name == "cuda"
        self._packer = make_backend(
            "cpu" if on_gpu else self._backend.name, threads=1, isa=None if on_gpu else self._backend.isa
        )
        self._servicer = ExpertServicer(
            worker,
            identity,
            self.store,
            config.max_streams,
            packer=self._packer,
            warm_up=partial(warm_up, self._backend, self.store, mode, shapes),
        )
        services = [self._servicer.service()]
        if worker.faults is not None:
            services.append(FaultsServicer(worker.faults).service())
        self._server: RpcServer = build_server(
            services,
            listen=config.listen,
            max_calls=config.max_streams + _CONTROL_CALLS,
            options=server_options(limits.max_frame_bytes),
            name=config.name,
            security=config.security,
        )

    @property
    def target(self) -> str:
        """Address for clients."""
        return self._server.target

    @property
    def heard(self) -> float:
        """When a coordinator last called, in seconds of time.monotonic."""
        return self._servicer.heard

    def start(self) -> None:
        self._server.start()
        self._server.set_serving(True)

    def stop(self, grace_s: float) -> bool:
        """Turns health to NOT_SERVING, lets what is in flight end within `grace_s` seconds, then ends server and
        backend.

        Returns whether everything in flight was answered.
        """
        self._server.set_serving(False)
        drained = self._servicer.drain(grace_s)
        ended = self._server.stop(_STOP_S if drained else 0.0)
        if drained and ended:
            self._backend.close()
        return drained and ended


def _make_backend(config: WorkerConfig) -> Backend:
    if config.device != "cpu":
        return _make_cuda(config)
    # The reference backend has one thread and no pinning of its own: the process is pinned already.
    cpus = config.cpus if config.backend == "cpu" and config.cpus else None
    try:
        return make_backend(config.backend, threads=config.threads, isa=config.isa, cpus=cpus)
    except ValueError as error:
        raise ConfigError("backend", "a backend, threads and isa that this machine has", error) from error


def _make_cuda(config: WorkerConfig) -> Backend:
    """Raises ConfigError if CuPy, a driver, the device or its memory is missing, or if the GPU is on another NUMA
    node.
    """
    from colibri.kernels.cuda.compiler import default_cache
    from colibri.kernels.cuda.device import DeviceError
    from colibri.kernels.cuda.opening import choose_device, open_cuda

    try:
        index = choose_device(config.device, lambda _: None)
        return open_cuda(
            index or 0,
            numa_node=config.numa_node,
            cache=default_cache(os.environ),
            block_size=config.gpu.block_size or BLOCK_SIZE,
            dma_buffer_size=config.gpu.dma_buffer_bytes or DMA_BUFFER_BYTES,
            int4_on=config.gpu.int4_on or "gpu",
            packer=make_backend("cpu", threads=config.threads, cpus=config.cpus or None),
        )
    except (DeviceError, ValueError) as error:
        raise ConfigError(
            "--device", f"a device that {config.device} names and can be used", error
        ) from error
