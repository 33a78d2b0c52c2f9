"""Where requests go. Belongs here: one module per protocol, each a Target. Does not belong here: when to
send, what the times mean.
"""
