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

from mmserve.cluster.scale.expected import Expected
from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.loads import ReplicaLoad
from mmserve.cluster.scale.ring import Ring

_MAX_HOLDERS, _OWNERS = 8, 2
"""Candidates of each kind."""
_LOOKED_UP = 4
"""Pictures of a request whose holders are candidates."""
_OWNER_S = 0.010
"""Preference for the ring's owner, so that fronts that know equally little send a new picture to one replica."""
_COPY = 1.0
"""Another copy of a picture costs its encoding once more than what this request waits for it: others wait there too."""
_TIE_S = 0.002
"""What replicas measure of themselves differs by more than this, so nothing follows from a smaller difference."""
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
    places: tuple[tuple[int, int], ...] = ()
    """Each picture in the order of the text, also one that comes again, and how many bytes of the text stand before it.
    For the replica."""
    text_nbytes: int = 0
    """Of the whole text. For the replica."""
    in_background: bool = False
    """The answer may be made without the client, so a replica that has got the request may go on with it."""


class Choice(NamedTuple):
    """``work_s``: of encoding and prefill, there. ``score_s``: until the first token."""

    replica: str
    score_s: float
    work_s: float
    reason: Reason


_Scored = tuple[float, int, int, int, float, str]
"""Seconds until the first token, pictures to encode, blocks that are computed there (negative), requests there, seconds
of encoding and prefill, replica. A plain tuple, because ten are made for a decision."""


class _Deepest(NamedTuple):
    """A few of those that hold the last block that anybody holds, and how many blocks there are up to it."""

    depth: int
    replicas: list[str]


@dataclass(frozen=True)
class Policy:
    """Reads the tables, which their owner changes. ``replicas``: all ids, in a list that can be indexed."""

    replicas: list[str]
    ring: Ring
    pictures: HoldingsTable
    expected: Expected
    blocks: HoldingsTable
    loads: dict[str, ReplicaLoad]
    random: Random

    def ranked(
        self,
        want: Want,
        avoid: Collection[str] = (),
        exclude: Collection[str] = (),
        mean_in_flight: float | None = None,
    ) -> list[Choice]:
        """Candidates, best first. Those in ``avoid`` only if there is no other, and those in ``exclude`` only if there
        is none of these either. Empty without replicas."""
        scored, owner = self._sorted(want, avoid, exclude, mean_in_flight)
        return [_choice(each, len(scored), want, owner) for each in scored]

    def best(
        self,
        want: Want,
        avoid: Collection[str] = (),
        exclude: Collection[str] = (),
        mean_in_flight: float | None = None,
    ) -> Choice | None:
        """The first of ``ranked``."""
        scored, owner = self._sorted(want, avoid, exclude, mean_in_flight)
        return _choice(scored[0], len(scored), want, owner) if scored else None

    def _sorted(
        self, want: Want, avoid: Collection[str], exclude: Collection[str], mean_in_flight: float | None
    ) -> tuple[list[_Scored], str]:
        """And the owner, which is empty if there is none."""
        owners = self._owners(want)
        holders = [self._holders(name) for name in want.pictures]
        deepest = self._deepest(want.blocks)
        names = self._allowed(self._likely(holders, deepest.replicas, owners), avoid, exclude)
        owner = owners[0] if owners else ""
        scored = self._scored(self._bounded(names, mean_in_flight), want, holders, deepest, owner)
        scored.sort()
        self._spread_ties(scored)
        return scored, owner

    def _owners(self, want: Want) -> list[str]:
        if want.pictures:
            return self.ring.owners(want.pictures[0], _OWNERS)
        return self.ring.owners(want.blocks[-1], _OWNERS) if want.blocks else []

    def _holders(self, name: int) -> list[str]:
        """If there are few, those that will hold it soon too."""
        held, expected = self.pictures.holders(name), self.expected.replicas(name)
        if not expected or len(held) > _MAX_HOLDERS:
            return held
        return [*held, *(each for each in expected if each not in held)]

    def _deepest(self, blocks: tuple[int, ...]) -> _Deepest:
        """Who holds a block holds those before it."""
        depth = _depth(blocks, self.blocks.is_held)
        return _Deepest(depth, self._few(self.blocks.holders(blocks[depth - 1]))) if depth else _Deepest(0, [])

    def _likely(self, holders: list[list[str]], deepest: list[str], owners: list[str]) -> Collection[str]:
        found: dict[str, None] = {}
        for each in holders[:_LOOKED_UP]:
            found.update(dict.fromkeys(self._few(each)))
        for some in (deepest, owners, self._two_at_random()):
            found.update(dict.fromkeys(some))
        return found

    def _allowed(self, likely: Collection[str], avoid: Collection[str], exclude: Collection[str]) -> Collection[str]:
        if not avoid and not exclude:
            return likely
        for unwanted in ({*avoid, *exclude}, exclude):
            chosen = [each for each in likely if each not in unwanted]
            if chosen := chosen or [each for each in self.replicas if each not in unwanted]:
                return chosen
        return likely

    def _two_at_random(self) -> list[str]:
        count = len(self.replicas)
        if count < 3:
            return self.replicas
        first = int(self.random.random() * count)
        second = (first + 1 + int(self.random.random() * (count - 1))) % count
        return [self.replicas[first], self.replicas[second]]

    def _few(self, holders: list[str]) -> list[str]:
        if (count := len(holders)) <= _MAX_HOLDERS:
            return holders
        start = int(self.random.random() * count)
        return (holders[start : start + _MAX_HOLDERS] + holders[:_MAX_HOLDERS])[:_MAX_HOLDERS]

    def _bounded(self, names: Collection[str], mean_in_flight: float | None) -> Collection[str]:
        """Those that are not overloaded."""
        if mean_in_flight is None or len(names) < 2:
            return names
        limit = _BOUND * mean_in_flight + _BOUND_FLOOR
        return [each for each in names if self.loads[each].in_flight <= limit] or names

    def _scored(
        self, replicas: Collection[str], want: Want, holders: list[list[str]], deepest: _Deepest, owner: str
    ) -> list[_Scored]:
        scored: list[_Scored] = []
        pictures, blocks, tokens, block_tokens = want[:4]
        expected = [self.expected.replicas(name) for name in pictures] if self.expected else []
        for replica in replicas:
            load = self.loads[replica]
            costs = load.reported
            missing = self._missing(replica, pictures, holders) if pictures else 0
            if replica in deepest.replicas:
                depth = deepest.depth
            else:
                depth = _depth(blocks[: deepest.depth], self.blocks.names(replica).__contains__)
            work_s = missing * costs.encode_s + max(0, tokens - depth * block_tokens) * costs.prefill_s
            score_s = load.wait_s + work_s
            if missing:
                score_s += costs.encoder_wait_s
                if any(holders):
                    score_s += _COPY * missing * costs.encode_s
            elif expected and any(replica in each for each in expected):
                score_s += costs.encoder_wait_s
            if replica == owner:
                score_s -= _OWNER_S
            scored.append((score_s, missing, -depth, load.in_flight, work_s, replica))
        return scored

    def _missing(self, replica: str, pictures: tuple[int, ...], holders: list[list[str]]) -> int:
        """A look into few holders is quicker than one into the many names of a replica, which are in no cache of the
        CPU where there are many replicas."""
        missing = 0
        for name, found in zip(pictures, holders):  # noqa: B905 - equally long, and asked for each candidate
            if len(found) <= _MAX_HOLDERS:
                missing += replica not in found
            else:
                missing += name not in self.pictures.names(replica) and replica not in self.expected.replicas(name)
        return missing

    def _spread_ties(self, scored: list[_Scored]) -> None:
        """Put first the least busy of those that are as good as the best, one of them at random."""
        if len(scored) < 2 or scored[1][0] > scored[0][0] + _TIE_S:
            return
        limit_s, held = scored[0][0] + _TIE_S, scored[0][1:3]
        ties = [each for each in scored if each[0] <= limit_s and each[1:3] == held]
        fewest = min(each[3] for each in ties)
        ties = [each for each in ties if each[3] == fewest]
        chosen = ties[int(self.random.random() * len(ties))]
        scored.remove(chosen)
        scored.insert(0, chosen)


def _choice(scored: _Scored, num_candidates: int, want: Want, owner: str) -> Choice:
    score_s, missing, depth, _, work_s, replica = scored
    reason: Reason
    if num_candidates == 1:
        reason = "only"
    elif depth or missing < len(want.pictures):
        reason = "held"
    else:
        reason = "owner" if replica == owner else "spread"
    return Choice(replica, score_s, work_s, reason)


def _depth(blocks: tuple[int, ...], is_held: Callable[[int], bool]) -> int:
    """How many of the first blocks are held, by bisection. Most replicas hold none."""
    if not blocks or not is_held(blocks[0]):
        return 0
    low, high = 1, len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if is_held(blocks[middle - 1]):
            low = middle
        else:
            high = middle - 1
    return low
