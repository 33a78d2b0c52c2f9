"""Compare what a worker says it is, holds and serves with what is wanted of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from colibri.cluster.experts.holders import ExpertId
from colibri.v1 import expert_pb2

#: Experts that a text names; of more it tells the number.
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Identities:
    """What decides the bits of every worker of a deployment.

    numerics: expert_numerics_id of all workers except `others`, which is by name.
    pack_hash: empty if weights come from the checkpoint itself.
    """

    model_hash: str
    pack_hash: str
    numerics: str
    others: Mapping[str, str] = field(default_factory=dict)

    def numerics_of(self, worker: str) -> str:
        return self.others.get(worker, self.numerics)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one incarnation of a worker should be.

    experts: that it must hold.
    epoch: of the placement in force, which it must serve.
    identities: None: not compared.
    """

    name: str
    incarnation: int
    experts: frozenset[ExpertId]
    epoch: int
    identities: Identities | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs from what is wanted.

    text: what is wrong, for people.
    other: it is another process or computes other bits, so nothing can be corrected in it.
    missing: experts that it does not hold.
    refuses: the placement in force is retired there.
    surplus: unwanted experts, which cost only memory.
    """

    text: str = ""
    other: bool = False
    missing: tuple[ExpertId, ...] = ()
    refuses: bool = False
    surplus: int = 0

    @property
    def wrong(self) -> bool:
        """Whether requests notice."""
        return self.other or self.refuses or bool(self.missing)


def compare(wanted: Wanted, said: expert_pb2.StatusReply, *, held: bool = True) -> Difference:
    """Compares. held: `said` contains the experts."""
    others = list(_other(wanted, said))
    if others:
        return Difference("; ".join(others), other=True)
    holds = frozenset((item.layer, item.expert) for item in said.held) if held else wanted.experts
    missing = tuple(sorted(wanted.experts - holds))
    refuses = said.epoch_min > wanted.epoch
    texts = []
    if refuses:
        texts.append(
            f"it serves epochs from {said.epoch_min} on, and the placement in force is {wanted.epoch}"
        )
    if missing:
        texts.append(
            f"it does not hold {_named(missing)} of the {len(wanted.experts)} experts that it should"
        )
    return Difference("; ".join(texts), False, missing, refuses, len(holds - wanted.experts))


def _other(wanted: Wanted, said: expert_pb2.StatusReply) -> Iterable[str]:
    if (said.worker, said.incarnation) != (wanted.name, wanted.incarnation):
        yield (
            f"expected {wanted.name}, incarnation {wanted.incarnation}, got {said.worker}, incarnation "
            f"{said.incarnation}"
        )
        return
    if wanted.identities is None:
        return
    for field_, expected, got in (
        ("model_hash", wanted.identities.model_hash, said.model_hash),
        ("pack_hash", wanted.identities.pack_hash, said.pack_hash),
        ("expert_numerics_id", wanted.identities.numerics_of(wanted.name), said.expert_numerics_id),
    ):
        # A build that tells no hashes (state 0) is compared by the routers' handshakes alone.
        if expected != got and (got or said.state):
            yield f"{field_}: expected {expected or 'none'}, got {got or 'none'}"


def _named(experts: tuple[ExpertId, ...]) -> str:
    named = ", ".join(f"{layer}:{expert}" for layer, expert in experts[:_NAMED])
    return named if len(experts) <= _NAMED else f"{len(experts)} ({named} ...)"
