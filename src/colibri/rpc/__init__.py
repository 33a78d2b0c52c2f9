"""What every gRPC server and client shares.

Belongs here: building a server and admitting calls (`server`, `guard`, `door`, `places`, `turns`, `refusals`,
`health`), statuses from typed errors and back (`status`, `plain_words`), and why a connection failed (`diagnose`).

Does not belong here: any one service's methods, frames of the data plane (`colibri.wire`, `colibri.transport`), and
who may call (`colibri.security`).
"""
