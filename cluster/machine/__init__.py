"""What a machine has, and which worker gets which part of it.

Belongs here: reading NUMA nodes, CPUs, GPUs and limits (`topology`, over `pci`, `cgroup` and `cpu_list`), planning who
gets which CPUs (`pinning_plan`, over `core_shares`; both pure), what a pinning that spans nodes costs
(`pinning_check`), network namespaces (`netns`), and whether the kernel killed a process for memory (`memory_kills`).
All take the roots of /sys and /proc as arguments, so that tests read made-up machines.

Does not belong here: pinning itself, which each worker does to its own process (`colibri.expert_service.pinning`), and
starting workers (`colibri.cluster.workers`).
"""
