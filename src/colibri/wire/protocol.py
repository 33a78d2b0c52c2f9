"""Versions of the data plane's protocol that this build speaks (HandshakeRequest.protocol_min,
protocol_max)."""

from __future__ import annotations

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
