"""The processor: architecture, instruction paths, threads, NUMA nodes, clock, frequency."""

from __future__ import annotations

import re
from collections.abc import Iterator

from colibri.cli.checks.finding import Finding, fail, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.cluster.machine.topology import UNKNOWN_NODE, NumaNode, Roots, Topology, discover
from colibri.deployment.sizes import size
from colibri.errors import ConfigError
from colibri.expert_service.cpu_locks import DEFAULT_FILE, VARIABLE
from colibri.installation import reinstall_command

AREA = "processor"
#: Paths best first, each with the flags of /proc/cpuinfo that it needs beyond the path below it.
NEEDS = {
    "avx512bf16": ("avx512_bf16",),
    "avx512": ("avx512f", "avx512dq", "avx512bw", "avx512vl"),
    "avx2": ("avx2", "fma", "f16c"),
    "portable": (),
}
#: Told in addition: other paths may come to use them.
_INTERESTING = ("avx512_vnni", "amx_bf16", "amx_int8", "amx_tile")
_OLDEST_KERNEL = (5, 3)
_GOOD_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")


def check(machine: Machine) -> Iterator[Finding]:
    yield from _system(machine)
    flags = _cpuinfo(machine, "flags").split()
    yield from _paths(machine, flags)
    topology = discover(Roots(machine.sysfs, machine.proc), machine.affinity)
    yield from _threads(machine, topology)
    yield from _workers(machine, topology)
    yield from _numa(machine, topology)
    yield from _clock(machine)
    yield from _governor(machine)


def _system(machine: Machine) -> Iterator[Finding]:
    if machine.architecture == "x86_64":
        yield ok(AREA, "architecture", f"x86_64, {_cpuinfo(machine, 'model name') or 'model not told'}")
    else:
        yield fail(AREA, "architecture", machine.architecture, "only x86-64 is supported so far")
    release = machine.proc_text("sys/kernel/osrelease")
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_KERNEL:
        yield fail(
            AREA,
            "kernel",
            release,
            "workers are watched through pidfds, which need Linux 5.3",
            "apt-get install --only-upgrade linux-image-amd64 && reboot",
        )
    else:
        yield ok(AREA, "kernel", f"Linux {release or 'release not told'}")


def _paths(machine: Machine, flags: list[str]) -> Iterator[Finding]:
    extra = [flag for flag in _INTERESTING if flag in flags]
    wanted = [flag for needs in NEEDS.values() for flag in needs]
    yield ok(AREA, "features", " ".join([flag for flag in wanted if flag in flags] + extra) or "none of use")
    found = machine.cpu_paths()
    asked = machine.environ.get("COLIBRI_ISA")
    if found.error:
        mend = "unset COLIBRI_ISA" if asked and found.supported else reinstall_command()
        yield fail(AREA, "kernel path", "none", found.error, mend)
        return
    why = _why_not_better(found.chosen, found.supported, found.fallback, flags, asked)
    best = found.supported[0] if found.supported else found.chosen
    if found.fallback:
        yield warn(
            AREA,
            "kernel path",
            found.chosen,
            f"{why}; the bits are right, but slower",
            "report it with the output of `colibri doctor --json`",
        )
    elif found.chosen != best:
        yield warn(AREA, "kernel path", found.chosen, why, "unset COLIBRI_ISA")
    elif found.chosen == "portable":
        virtual = "hypervisor" in flags
        yield warn(
            AREA,
            "kernel path",
            "portable",
            f"{why}; many times slower than AVX2",
            "give the virtual machine its host's CPU model (QEMU: -cpu host)" if virtual else "",
        )
    else:
        yield ok(AREA, "kernel path", found.chosen, why)


def _why_not_better(
    chosen: str, supported: tuple[str, ...], fallback: str, flags: list[str], asked: str | None
) -> str:
    """For each path better than the chosen one, what keeps it from being used."""
    reasons = []
    for path, needs in NEEDS.items():
        if path == chosen:
            break
        missing = [flag for flag in needs if flag not in flags]
        if path in supported:
            reasons.append(
                fallback if fallback else f"{path} is here, but COLIBRI_ISA={asked} asks for another"
            )
        elif missing:
            reasons.append(f"no {path}: this CPU lacks {', '.join(missing)}")
    return "; ".join(dict.fromkeys(reasons))


def _threads(machine: Machine, topology: Topology) -> Iterator[Finding]:
    cpus = topology.cpus
    cores = sum(len(node.cores) for node in topology.nodes)
    value = (
        f"CPUs {format_cpu_list(cpus)}: {len(cpus)} threads of {cores} cores; {topology.cpu_budget} may run"
    )
    if topology.quota is not None and topology.quota < len(cpus):
        yield warn(
            AREA,
            "threads",
            value,
            f"the control group grants {topology.quota:g} CPUs of time: more threads would be stopped at every period",
            f"docker update --cpus={len(cpus)} CONTAINER (Kubernetes: resources.limits.cpu)",
        )
    elif len(cpus) == 1:
        yield warn(
            AREA, "threads", value, "coordinator and all workers share one CPU", "give it two CPUs or more"
        )
    else:
        yield ok(AREA, "threads", value)


def _workers(machine: Machine, topology: Topology) -> Iterator[Finding]:
    """Which CPUs workers have already."""
    try:
        taken = machine.taken()
    except ConfigError as error:
        mend = f"unset {VARIABLE}" if VARIABLE in machine.environ else f"chmod 666 {DEFAULT_FILE}"
        yield fail(AREA, "locks", "not told", error.message, mend)
        return
    here = set(taken).intersection(topology.cpus)
    if not here:
        yield ok(AREA, "locks", "no worker has a CPU")
        return
    pids = sorted({taken[cpu] for cpu in here} - {0})
    value = f"workers have CPUs {format_cpu_list(here)}" + (
        f" (process {', '.join(map(str, pids))})" if pids else ""
    )
    free = sum(1 for node in topology.nodes for core in node.cores if here.isdisjoint(core))
    yield ok(
        AREA,
        "locks",
        value,
        "" if free else "no core is free: a further worker starts with --share-cpus only",
    )


def _numa(machine: Machine, topology: Topology) -> Iterator[Finding]:
    nodes = [node for node in topology.nodes if node.id != UNKNOWN_NODE]
    if not nodes:
        yield ok(AREA, "NUMA", "the kernel names no node", "no memory policy is set; one memory is assumed")
        return
    value = "; ".join(
        f"node {node.id}: CPUs {format_cpu_list(node.cpus) or 'none of ours'}, "
        + _memory(node)
        + _distances(node, nodes)
        for node in nodes
    )
    folder = "devices/system/node"
    cut = [node for node in nodes if not node.cpus and machine.sys_text(f"{folder}/node{node.id}/cpulist")]
    if len(nodes) > 1 and machine.proc_text("sys/kernel/numa_balancing") not in ("", "0"):
        yield warn(
            AREA,
            "NUMA",
            value,
            "the kernel moves pages between nodes by itself, against the workers' pinning",
            "sysctl -w kernel.numa_balancing=0",
        )
    elif cut:
        yield warn(
            AREA,
            "NUMA",
            value,
            "this process may not use the CPUs of every node; memory of the others is remote",
            "start it without taskset or cpuset, or with the CPUs of whole nodes",
        )
    else:
        yield ok(AREA, "NUMA", value)


def _memory(node: NumaNode) -> str:
    if not node.has_memory:
        return "no memory of ours"
    return size(node.memory_bytes) if node.memory_bytes else "size not told"


def _distances(node: NumaNode, nodes: list[NumaNode]) -> str:
    others = ((other.id, node.distance(other.id)) for other in nodes if other is not node)
    told = ", ".join(f"{distance} to {other}" for other, distance in others if distance is not None)
    return f", distance {told}" if told else ""


def _clock(machine: Machine) -> Iterator[Finding]:
    folder = "devices/system/clocksource/clocksource0"
    clock = machine.sys_text(f"{folder}/current_clocksource")
    if not clock or clock in _GOOD_CLOCKS:
        yield ok(AREA, "clock", clock or "not told")
        return
    mend = ""
    if "tsc" in machine.sys_text(f"{folder}/available_clocksource").split():
        mend = f"echo tsc > /sys/{folder}/current_clocksource"
    yield warn(
        AREA, "clock", clock, "each reading of the time costs a microsecond; every step takes many", mend
    )


def _governor(machine: Machine) -> Iterator[Finding]:
    folder = machine.sysfs / "devices/system/cpu"
    found = {
        machine.sys_text(f"devices/system/cpu/{path.parent.parent.name}/cpufreq/scaling_governor")
        for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    if not found:
        return
    driver = machine.sys_text("devices/system/cpu/cpu0/cpufreq/scaling_driver")
    # intel_pstate's and amd-pstate's own "powersave" speeds up under load; that of other drivers never does.
    if "powersave" in found and "pstate" not in driver:
        yield warn(
            AREA,
            "frequency",
            f"powersave ({driver or 'driver not told'})",
            "the CPU stays at its lowest frequency",
            "cpupower frequency-set -g performance",
        )
    else:
        yield ok(AREA, "frequency", ", ".join(sorted(found)))


def _cpuinfo(machine: Machine, field: str) -> str:
    found = re.search(rf"^{re.escape(field)}\s*:\s*(.*)$", machine.proc_text("cpuinfo"), flags=re.MULTILINE)
    return found[1].strip() if found else ""
