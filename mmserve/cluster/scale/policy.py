"""The replica at which a request gets its first token soonest.

The score of a replica is in seconds: how long the request would wait there, and the work that it would cause: pictures
to encode, tokens to prefill. A hot picture spreads by itself: once the queue where it is costs more than encoding it,
another replica does so. Few replicas are scored, however many there are: holders, the ring's owners, two at random.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.loads import ReplicaLoad
from mmserve.cluster.scale.ring import Ring

_MAX_HOLDERS, _OWNERS = 8, 2
"""Candidates of each kind."""
_LOOKED_UP = 4
"""Pictures of a request whose holders are candidates."""
_OWNER_S = 0.010
"""Preference for the ring's owner, so that fronts that know equally little send a new picture to one replica."""
_BOUND, _BOUND_FLOOR = 1.25, 4
"""A replica with more requests than this many times the mean, and this many more, is avoided."""
Reason = Literal["held", "owner", "spread", "only"]
"""held: it has something of the request; owner: nobody had, and the ring says so; only: there was no choice."""


class Want(NamedTuple):
    """What a request needs. ``blocks``: names of its prompt's full blocks, from the first on, as far as they are known.

    ``tokens``: of the prompt, those of pictures too.
    """

    pictures: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    tokens: int = 0
    block_tokens: int = 16


class Choice(NamedTuple):
    """``work_s``: of encoding and prefill, there. ``score_s``: until the first token."""

    replica: str
    score_s: float
    work_s: float
    reason: Reason


@dataclass(frozen=True)
class Policy:
    """Reads the tables, which their owner changes. ``replicas``: all ids, in a list that can be indexed."""

    replicas: list[str]
    ring: Ring
    pictures: HoldingsTable
    blocks: HoldingsTable
    loads: dict[str, ReplicaLoad]
    random: Random

    def ranked(self, want: Want, avoid: Collection[str] = (), mean_in_flight: float | None = None) -> list[Choice]:
        """Candidates, best first. Those in ``avoid`` only if there is no other. Empty without replicas."""
        owners = self._owners(want)
        names = self._candidates(want, owners, avoid)
        if not names:
            names = self._candidates(want, owners, ())
        if mean_in_flight is not None and len(names) > 1:
            limit = _BOUND * mean_in_flight + _BOUND_FLOOR
            names = [each for each in names if self.loads[each].in_flight <= limit] or names
        owner = owners[0] if owners else ""
        choices = [self._scored(replica, want, owner) for replica in names]
        choices.sort(key=_by_score)
        if len(choices) == 1:
            return [choices[0]._replace(reason="only")]
        return choices

    def _owners(self, want: Want) -> list[str]:
        if want.pictures:
            return self.ring.owners(want.pictures[0], _OWNERS)
        return self.ring.owners(want.blocks[-1], _OWNERS) if want.blocks else []

    def _candidates(self, want: Want, owners: list[str], avoid: Collection[str]) -> list[str]:
        found: dict[str, None] = {}
        for name in want.pictures[:_LOOKED_UP]:
            self._add_holders(found, self.pictures.holders(name))
        if want.blocks:
            self._add_holders(found, self._deepest_holders(want.blocks))
        found.update(dict.fromkeys(owners))
        found.update(dict.fromkeys(self._two_at_random()))
        chosen = [each for each in found if each not in avoid]
        if chosen or not avoid:
            return chosen
        return [each for each in self.replicas if each not in avoid]

    def _two_at_random(self) -> list[str]:
        count = len(self.replicas)
        if count < 3:
            return self.replicas
        first = int(self.random.random() * count)
        second = (first + 1 + int(self.random.random() * (count - 1))) % count
        return [self.replicas[first], self.replicas[second]]

    def _add_holders(self, found: dict[str, None], holders: list[str]) -> None:
        if len(holders) > _MAX_HOLDERS:
            holders = self.random.sample(holders, _MAX_HOLDERS)
        found.update(dict.fromkeys(holders))

    def _deepest_holders(self, blocks: tuple[int, ...]) -> list[str]:
        """Of the last block that anybody holds; who holds a block holds those before it."""
        depth = _depth(blocks, lambda name: bool(self.blocks.holders(name)))
        return self.blocks.holders(blocks[depth - 1]) if depth else []

    def _scored(self, replica: str, want: Want, owner: str) -> Choice:
        load = self.loads[replica]
        costs = load.reported
        held = self.pictures.names(replica)
        missing = sum(name not in held for name in want.pictures)
        depth = _depth(want.blocks, self.blocks.names(replica).__contains__) if want.blocks else 0
        work_s = missing * costs.encode_s + max(0, want.tokens - depth * want.block_tokens) * costs.prefill_s
        score_s = load.wait_s + work_s
        if missing:
            score_s += costs.encoder_wait_s + missing * costs.pressure_s
        if depth or missing < len(want.pictures):
            reason: Reason = "held"
        else:
            reason = "owner" if replica == owner else "spread"
        return Choice(replica, score_s - (_OWNER_S if replica == owner else 0.0), work_s, reason)


def _by_score(choice: Choice) -> float:
    return choice.score_s


def _depth(blocks: tuple[int, ...], is_held: Callable[[int], bool]) -> int:
    """How many of the first blocks are held, by bisection."""
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if is_held(blocks[middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low
