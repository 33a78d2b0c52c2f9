"""Where a deployment's workers run, and which experts each of them holds.

Belongs here, lowest layer first: what a machine has and who gets which part of it (`machine`), who holds which expert
(`experts`), the workers over all their lives (`workers`), the placement and how it changes while requests run
(`placing`), and above these the service Operator (`operator`) and workers on the hosts of a Ray cluster (`ray`).

Does not belong here: what a worker does once it runs (`colibri.expert_service`), the snapshot that routers read
(`colibri.placement`), what a router does about a worker that fails (`colibri.router_service`), and the wiring of a
whole deployment (`colibri.deployment.assemble`).
"""
