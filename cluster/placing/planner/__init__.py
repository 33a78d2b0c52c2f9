"""The placement planner: loads, capacities, hosts and the present placement in, holders of every expert out. Pure.

Belongs here: what is asked (`problem`), the whole of it (`plan`), its stages: a placement to start from (`seed`),
enough copies on different hosts within each worker's memory (`cover`, over `layout`), evened out by number where loads
are not known (`even`) and by load where they are (`balance`; its steps in `replicate_hot`, over `queues` and
`spares`), and what a plan comes to (`outcome`). The formulas are in docs/placement.md.

Does not belong here: measuring loads (`colibri.router_service.expert_loads`), when to plan
(`colibri.cluster.placing.rebalancer`), carrying a plan out (`change` and `transaction` of `colibri.cluster.placing`),
and how an expert's rows are divided among its holders (`colibri.row_division`, which the planner reckons with).
"""
