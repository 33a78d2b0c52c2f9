"""The Reach table of failover: what users notice when workers die, hang, lie, move, or sit behind a slow network.

Plans with events are those of docs/chaos, run as `colibri chaos` runs them; the rest measures the price.
"""
