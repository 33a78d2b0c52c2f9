"""Roles: what a certificate says its holder is, and what that holder may do."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

#: A URI among a certificate's subject alternative names; what follows is a Role's value.
ROLE_PREFIX = "urn:colibri:role:"
#: A name that every worker's certificate of `colibri certs` carries: for hosts whose addresses nobody knows before.
WORKER_NAME = "worker.colibri.internal"


class Scope(enum.Enum):
    """What a call needs. CLIENT: answers; OPERATOR: changes of the deployment; PLANE: the workers' own calls."""

    CLIENT = "client"
    OPERATOR = "operator"
    PLANE = "plane"


class Role(enum.Enum):
    COORDINATOR = "coordinator"
    ROUTER = "router"
    WORKER = "worker"
    CLIENT = "client"
    OPERATOR = "operator"

    @property
    def serves(self) -> bool:
        """Whether its certificate may stand for a server."""
        return self in (Role.COORDINATOR, Role.ROUTER, Role.WORKER)

    @property
    def calls(self) -> bool:
        """Whether its certificate may stand for a caller. A worker calls nobody."""
        return self is not Role.WORKER

    @property
    def scopes(self) -> frozenset[Scope]:
        return _SCOPES[self]


_SCOPES: Mapping[Role, frozenset[Scope]] = {
    Role.COORDINATOR: frozenset(Scope),
    Role.ROUTER: frozenset({Scope.CLIENT, Scope.PLANE}),
    Role.WORKER: frozenset(),
    Role.CLIENT: frozenset({Scope.CLIENT}),
    Role.OPERATOR: frozenset({Scope.CLIENT, Scope.OPERATOR}),
}


def roles_in(names: Iterable[str]) -> list[Role]:
    """Returns the roles among a certificate's URIs; ignores unknown ones."""
    values = {role.value: role for role in Role}
    ends = [name.removeprefix(ROLE_PREFIX) for name in names if name.startswith(ROLE_PREFIX)]
    return [values[end] for end in ends if end in values]


def roles_for(scope: Scope) -> Sequence[Role]:
    return [role for role in Role if scope in role.scopes]
