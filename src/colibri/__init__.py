"""Colibri: Mixture-of-Experts language models served by expert workers over gRPC, bit for bit.

This package itself is the base that all parts share: errors, numerics ids, placement types, the wire codec,
transports, the Python client, the version. It imports the generated protos and nothing of the parts above it.
"""

__version__ = "0.1.0"
