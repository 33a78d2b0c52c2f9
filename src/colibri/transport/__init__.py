"""Links between a router and a worker: bytes out, bytes in, bounded waits.

Belongs here: addresses, channel and server options, the Link interface and its implementations. Does not belong
    here:
what the bytes mean (colibri.wire), retries, placement.
"""
