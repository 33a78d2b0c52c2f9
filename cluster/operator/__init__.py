"""The service Operator: a deployment's status, and commands that change its placement while requests run.

Belongs here: the gRPC service (`operator_service`), and the state of a whole deployment as one message
(`cluster_status`).

Does not belong here: what the commands do (`colibri.cluster.placing`), and how a terminal shows them (`colibri.cli`).
"""
