"""A chaos run from its plan to its verdict: network, server, expected answers, load and events."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from colibri.bench.chaos.certificates import make_certificates
from colibri.bench.chaos.network.build import open_network
from colibri.bench.chaos.network.layout import Place
from colibri.bench.chaos.operator import Operator
from colibri.bench.chaos.plan import Action, LinkQuality, Plan, ServeSpec
from colibri.bench.chaos.runner import ChaosResult, ChaosRun
from colibri.bench.chaos.serving import serve_command, serving
from colibri.bench.chaos.timeline import Moment
from colibri.bench.chaos.verdict import Verdict, judge
from colibri.bench.chaos.workload import workload_of
from colibri.bench.expected import OracleSource, default_cache, expected_answers
from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.oracle import Judge, Oracle
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.bench.load.workload import Workload
from colibri.client import Client, ModelInfo
from colibri.deployment.model_name import find_model
from colibri.errors import ConfigError
from colibri.models.home import colibri_home
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.security.plane_secret import PlaneSecret


def run_plan(
    plan: Plan,
    target: str | None = None,
    *,
    security: ChannelSecurity = PLAIN,
    secret: PlaneSecret | None = None,
    tell: Callable[[str], None] = lambda line: None,
    server_log: Callable[[str], None] = lambda line: None,
) -> tuple[ChaosResult, Verdict]:
    """Runs a plan. Raises ColibriError if it cannot begin, ConfigError if the plan does not say which model answers.

    target: a server that runs already, called as `security` says; None: start one, whose workers' memory is
        measured too.
    secret: of that server's workers, for faults.
    """
    spec = plan.serve
    if spec is None:
        raise ConfigError("serve.model", "the checkpoint that is served, to know its answers", "none")
    folder = model_folder(spec.model)
    workers = ChannelSecurity(secret=secret)
    with contextlib.ExitStack() as stack:
        network, pid, places = None, None, list[Place]()
        if target is None:
            if plan.network is not None:
                names = [f"w{index}" for index in range(spec.workers)]
                quality = plan.network.quality
                shaped = quality != LinkQuality() or Action.LINK in plan.count()
                network = stack.enter_context(open_network(names, quality, shaped=shaped))
                places = list(network.layout.places)
            tell(f"starting a server with {spec.workers} workers, {spec.replicas} holders of each expert")
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colibri-chaos-")))
            kept = scratch / "secret"
            made = make_certificates(scratch) if spec.mtls else None
            how = (f"--worker-secret-file={kept}",) if made is None else made.options
            server = stack.enter_context(serving(serve_command(folder, spec, places, how), log=server_log))
            target, pid = server.target, server.pid
            if made is None:
                security, workers = (
                    PLAIN,
                    ChannelSecurity(secret=PlaneSecret.read(kept, "--worker-secret-file")),
                )
            else:
                security, workers = made.server, made.workers
        with Client(target, security=security) as client:
            model = client.model_info()
        workload = workload_of(plan.load, model, plan.seed)
        tell(f"{plan.load.distinct} answers to compare with")
        oracle = _oracle(folder, spec, model, workload, plan.load.distinct)
        load = LoadRun(
            GrpcTarget(target, in_flight=plan.load.users, security=security),
            workload,
            ClosedLoop(plan.load.users),
            RunLimits(in_flight=plan.load.users, request_timeout_s=plan.load.request_timeout_s),
        )
        operator = stack.enter_context(Operator(target, security=security))

        def heard(moment: Moment) -> None:
            tell(moment.line())

        result = ChaosRun(
            plan, operator, load, network, coordinator_pid=pid, workers=workers, heard=heard
        ).run()
    return result, judge(result, oracle.judge_all(result.records))


def model_folder(name: str) -> Path:
    """Returns a path, or the demo model's, which is made if it is not there."""
    return Path(find_model(name))


def _oracle(folder: Path, spec: ServeSpec, model: ModelInfo, workload: Workload, requests: int) -> Oracle:
    backend = [word.partition("=")[2] for word in spec.options if word.startswith("--backend=")]
    source = OracleSource(
        folder, default_cache(colibri_home(os.environ), model.model_hash), (backend or ["cpu"])[-1]
    )
    judged = Judge(model.model_hash, model.engine_numerics_id, model.eos_ids)
    wanted = [workload.request(index) for index in range(requests)]
    return expected_answers(source, judged, model.compute_mode, wanted)
