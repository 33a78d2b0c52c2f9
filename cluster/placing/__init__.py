"""The placement: what is wanted, the plan that gets there, and carrying it out while requests run.

Belongs here: what an operator wants (`desired`, changed by `commands`, stored by `kept`), what planning knows of each
worker (`worker_facts`), the planner (`planner`) and its plan for measured loads (`proposal`), the next placement
(`target`) and the work on the way there (`change`): all pure. Then when loads call for a new plan (`rebalancer`,
`rebalance_options`), carrying a change out (`transaction`), and the thread that does so (`manager`, over `reconcile`
and `retry`).

Does not belong here: measuring loads (`colibri.router_service.expert_loads`), starting workers
(`colibri.cluster.workers`), and the service that operators call (`colibri.cluster.operator`).
"""
