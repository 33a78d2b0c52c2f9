"""Where processes run: topology discovery, CPU plans, launchers, membership.

Belongs here: reading a machine's NUMA nodes, GPUs and limits (`topology`, `pci`, `cgroup`), who gets which CPUs
(`pinning_plan`, `core_shares`, pure) and whether a place spans nodes (`pinning_check`), and what starts or finds
workers, watches them and publishes who is alive (`launcher`, `worker_supervisor`, over who begins a `life`: `local`,
subprocesses of this machine; `ray`, actors of a Ray cluster; `attached`: workers that somebody else started). And live
changes of placement: what is wanted and the way there as pure plans (`planner`, `desired`, `place`, `target`,
`change`), when loads call for one (`rebalancer`), the transaction (`transaction`), the thread that minds all of it
(`manager`, `reconcile`), and the service Operator over that (`operator_service`, `cluster_status`).

Does not belong here: what a worker does once it runs (`colibri.expert_service`), the snapshot types
(`colibri.placement`), what a router does about a worker that fails (`colibri.router_service`), and the wiring of a
whole deployment (`colibri.deployment.assemble`).
"""
