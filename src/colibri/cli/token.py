"""Make bearer tokens for the callers of a server, and show which there are.

A group of verbs; what a server makes of them is colibri.security.tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from colibri.cli.verb import Verb

VERBS: Mapping[str, Verb] = {
    "new": Verb("Draw a token and add it to the file of a server.", "colibri.cli.token_new"),
    "show": Verb("Show the tokens of a server's file: names, scopes, ends.", "colibri.cli.token_show"),
}

ABOUT = """
A server takes the tokens of its --tokens FILE and looks at that again within a second of a change: a line that is
removed is a token that is not taken any more. The file holds digests, a token itself is its caller's alone.
"""
