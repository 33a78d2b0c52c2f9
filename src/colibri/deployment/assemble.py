"""The one place where parts are wired: checkpoint or pack, backend, workers, router, engine.

Model -------dense weights--> DecoderStack ---+
    |                                          Engine --> Generation
    +------gates------> MoeRouter -------------+-------> Router
    |                       |
    +-----experts---> RemoteExecutor --gRPC--> workers of a Launcher
                      or LocalExecutor, with --workers 0
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from functools import partial

from colibri.cluster.machine.topology import discover
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.manager import PlacementManager
from colibri.cluster.placing.rebalancer import Rebalancer
from colibri.cluster.placing.reconcile import ManagerOptions
from colibri.cluster.ray.options import Seating
from colibri.cluster.workers.launch import LaunchOptions, start_timeout_s
from colibri.cluster.workers.worker_process import ANYWHERE
from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.engine import Engine
from colibri.deployment.compute_mode import choose_mode
from colibri.deployment.devices import Asked, Machine, check_int4, settle_devices, worker_kinds
from colibri.deployment.launchers import gpu_workers, make_launcher
from colibri.deployment.mix import mix_of
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.parts import connect_workers, gate_precision, machine_places, open_backend, threads_of
from colibri.deployment.pinning import CPU, PinningOptions, use_locks
from colibri.deployment.reports import Log, Milestone, Progress, no_milestone, no_progress, to_logging
from colibri.deployment.running import Deployment
from colibri.deployment.start import start_of
from colibri.errors import ConfigError
from colibri.expert_service.execute import run_units
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import Backend, ComputeMode
from colibri.models.model import (
    Model,
    confirm_texts,
    expert_bytes,
    expert_numerics,
    for_use,
    formats,
    load_gates,
    noted_experts,
    open_model,
)
from colibri.models.text_names import TOKENIZER_NAME
from colibri.models.tokenizer import Tokenizer
from colibri.numerics import EngineNumerics
from colibri.placement import Directory, Membership, spread
from colibri.router_service.executor import LocalExecutor, RunUnits
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.router import MoeRouter
from colibri.security.plane_secret import PlaneSecret


def assemble(
    options: DeploymentOptions,
    log: Log = to_logging,
    *,
    progress: Progress = no_progress,
    milestone: Milestone = no_milestone,
    machine: Machine | None = None,
) -> Deployment:
    """Starts a deployment and returns it once it can answer.

    Workers start and load while this process packs the dense weights.

    options: what is wanted.
    log: takes lines for operators, now and as long as the deployment runs.
    progress: told of what is being loaded.
    milestone: told of each phase of the start as it ends.
    machine: the devices to choose from. None: this machine's GPUs, or those of Ray's hosts.

    Raises CheckpointError, ConfigError, WorkerLost and other ColibriErrors, and then leaves nothing running.
    """
    ray = options.cluster.ray
    use_locks(options.pinning.locks, os.environ)
    topology = discover()
    if machine is None:
        machine = Machine(topology.gpus, elsewhere=None if ray is None else partial(gpu_workers, ray, log))
    devices = settle_devices(
        options.pinning,
        options.workers,
        options.usual_workers,
        options.backend,
        machine,
        log,
    )
    settled, workers = devices.pinning, devices.workers
    topology = replace(topology, gpus=devices.gpus)
    model = for_use(open_model(options.model))
    config = model.config
    mode = choose_mode(model, options.compute_mode, log)
    precision = gate_precision(options.router_precision, options.backend)
    if options.replicas > max(workers, 1):
        raise ConfigError("--replicas", f"at most {workers} (the number of workers)", options.replicas)
    int4_on = options.cluster.gpu.int4_on
    check_int4(int4_on, settled.devices, formats(model, mode)[0].name)
    # On other hosts the workers settle their own places.
    pinning = settled if ray is None else PinningOptions()
    places = machine_places(options.backend, options.threads, pinning, log, topology)
    cluster = options.cluster
    shape = config.layers, config.experts
    start = start_of(
        cluster.state,
        workers,
        options.replicas,
        shape,
        expert_bytes(model, mode),
        options.mixed_numerics,
        log,
    )
    names = start.names
    plan = places.first(workers, names) if ray is None else places.first(0)
    found = worker_kinds(
        settled,
        names,
        plan.workers,
        Asked(options.backend, cluster.backends, cluster.experts_on, int4_on, options.mixed_numerics),
        machine.family,
    )
    mix = mix_of(lambda kind: expert_numerics(model, kind[0], mode, kind[1]), found, config.experts)
    numerics = EngineNumerics(mix.numerics, formats(model, mode)[1].name, mode.value, precision.value)
    for line in mix.lines(names):
        log(line)

    with contextlib.ExitStack() as undo:
        tokenizer = None
        if (model.folder / TOKENIZER_NAME).exists():
            tokenizer = Tokenizer.load(model.folder, config)
            undo.callback(tokenizer.close)
        confirm_texts(model)
        milestone("checkpoint")
        launcher = manager = None
        if workers:
            placement = start.placement or mix.spread(*shape, names, options.replicas)
            launcher = make_launcher(
                ray,
                LaunchOptions(
                    model.origin,
                    mode.value,
                    options.transport,
                    options.backend,
                    ready_timeout_s=options.start_timeout_s or start_timeout_s(workers),
                    memory=options.cluster.memory,
                    allow_faults=options.cluster.allow_faults,
                    allow_cross_node=options.pinning.cross_node,
                    networks=options.cluster.networks,
                    backoff_max_s=options.cluster.restart_pause_s,
                    tls=options.cluster.tls,
                    insecure=options.cluster.insecure,
                    secret=options.cluster.secret or PlaneSecret.draw(),
                    backends=options.cluster.backends,
                    identities=mix.identities(model.model_hash(), model.pack_hash),
                    gpu=options.cluster.gpu,
                ),
                placement,
                plan.workers,
                options.replicas,
                _seating(options),
                on_gpu=settled.devices[0] != CPU,
                progress=lambda worker, done, total, nbytes: progress(f"worker {worker}", done, total),
                milestone=milestone,
                log=log,
            )
            undo.callback(launcher.close)
            launcher.publisher.contents.believe(*noted_experts(model))
            launcher.spawn()
            directory = launcher.directory
            if plan.oversubscribed:
                log(f"OVERSUBSCRIBED: {len(names)} workers share {len(plan.coordinator_cpus)} CPUs")
        else:
            placement = spread(*shape, ["local"])
            directory = Directory(Membership(placement, {}))

        # This process computes while the workers wait and the other way round: it shares their CPUs.
        undo.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, plan.coordinator_cpus)
        backend = open_backend(options.backend, plan)
        undo.callback(backend.close)
        weights = DecoderWeights.load(
            model,
            backend,
            mode,
            lambda done, total: progress("dense weights", done, total),
            max_positions=min(config.max_positions, options.engine.kv_tokens),
        )
        gates = load_gates(model, backend)
        milestone("dense weights")

        executor: LocalExecutor | RemoteExecutor
        if launcher is None:
            executor = LocalExecutor(_local_experts(model, backend, mode, progress))
            undo.callback(executor.close)
            milestone("experts loaded")
        else:
            launcher.wait_serving()
            executor = connect_workers(
                model,
                mode,
                mix,
                directory,
                "coordinator",
                options.link,
                options.cluster.policy,
                undo,
                log,
            )
            milestone("connected")
        router = MoeRouter(backend, mode, gates, config.top_k, directory, executor, precision)
        if launcher is not None:
            keeper = start.keeper(log)
            if keeper is not None:
                undo.callback(keeper.close)
            manager = PlacementManager(
                launcher,
                start.desired
                or Desired.of(placement, options.replicas, expert_bytes(model, mode), mix.homes),
                places.joining if ray is None else lambda present, joining: [ANYWHERE] * len(joining),
                ManagerOptions(
                    memory=options.cluster.memory,
                    absent_after_s=ManagerOptions().absent_after_s if ray is None else ray.absent_after_s,
                ),
                rebalancer=Rebalancer(router.loads, options.cluster.rebalance, time.monotonic),
                keeper=keeper,
                log=log,
            )
            undo.callback(manager.close)
        stack = DecoderStack(weights, backend)
        engine = Engine(stack, tokenizer, router, options.engine, numerics=numerics)
        return Deployment(
            model,
            tokenizer,
            numerics,
            backend,
            weights,
            directory,
            executor,
            router,
            engine,
            launcher,
            manager,
            undo.pop_all(),
            log,
        )


def _seating(options: DeploymentOptions) -> Seating:
    """The same wishes, for the workers of each host of a cluster."""
    pinning = options.pinning
    threads = threads_of(options.backend, options.threads)
    return Seating(pinning.numa_nodes, pinning.cpu_threads, threads, pinning.share)


def _local_experts(model: Model, backend: Backend, mode: ComputeMode, progress: Progress) -> RunUnits:
    """All experts in this process, and the very routine that workers run."""
    config = model.config
    store = WeightStore(model, backend, mode)
    keys = [(layer, expert) for layer in range(config.layers) for expert in range(config.experts)]
    store.load(keys, lambda step: progress("experts", step.experts_done, step.experts_total))
    return partial(run_units, backend, store)
