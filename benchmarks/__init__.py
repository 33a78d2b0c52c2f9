"""Timings and comparisons with peers and limits; never imported by the product, never an assertion in tests.

`python -m benchmarks.reach TOPIC` measures a topic's Reach table. Peers (torch, transformers) live in an
environment of their own, .venv-peers (`make peers`), and are driven as processes through benchmarks/peers/.
"""
