"""Make the certificates by which the processes of a deployment know one another.

A group of verbs; the CA itself is colibri.security.authority.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from colibri.cli.verb import Verb

VERBS: Mapping[str, Verb] = {
    "init": Verb("Make a private CA in a new folder.", "colibri.cli.certs_init"),
    "issue": Verb("Issue a certificate for a role and its hosts.", "colibri.cli.certs_issue"),
    "show": Verb("Show the certificates of a folder, and when they end.", "colibri.cli.certs_show"),
    "renew": Verb(
        "Issue anew what ends soon; servers take it up without a restart.", "colibri.cli.certs_renew"
    ),
}

ABOUT = """
A folder holds the CA (ca.pem, ca.key) and what it issued (NAME.pem, NAME.key). ca.key makes new members of the
deployment: it stays on the operator's machine, off every host that serves. docs/security.md tells who needs what.
"""


def authority() -> ModuleType:
    """The module colibri.security.authority. Raises ConfigError naming the extra that it needs."""
    from colibri.errors import ConfigError
    from colibri.installation import extra_command

    try:
        from colibri.security import authority
    except ImportError as error:
        raise ConfigError("colibri certs", f"the extra 'tls': {extra_command('tls')}", error) from None
    return authority
