"""What every gRPC server and client here shares: statuses from typed errors and back, the server with its
health.

Does not belong here: any one service's methods; the data plane's frames (colibri.wire, colibri.transport).
"""
