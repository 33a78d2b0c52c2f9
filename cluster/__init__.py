"""Where processes run: topology discovery, CPU plans, launchers, membership.

Belongs here: reading a machine's NUMA nodes and CPU budget (`topology`), who gets which CPUs (`pinning_plan`,
pure), and what starts or finds workers, watches them and publishes who is alive (`local`: subprocesses of this
machine; `attached`: workers that somebody else started).

Does not belong here: what a worker does once it runs (`colibri.expert_service`), which expert lies on which
worker (`colibri.placement`), and the wiring of a whole deployment (`colibri.cli.assemble`).
"""
