"""What the memory of a GPU is divided into, in bytes. Pure arithmetic: ranks, visual servers and the planner share it.

A card holds weights and what its processes hold for good (``used``), then for each rank on it what the largest step
computes in and the captured graphs. The KV cache gets the rest of the part that the server may take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_MIB = 1 << 20
CONTEXT_NBYTES = 1 << 30
"""Of CUDA, its libraries and torch in one process."""
_MARGIN_NBYTES, _MARGIN_PART = 256 * _MIB, 100
"""Left free beside the part that the server may not take: so many bytes, and one hundredth of the card."""
_GRAPH_NBYTES = 8 * _MIB
"""Of one captured graph beside its intermediate results, which all graphs share. Not measured on a card yet."""
_GRAPH_LOGIT_NBYTES = 12
"""Of each number of the largest graph's logits: itself, a copy in float32, and where a step's logits stay."""
_SAMPLER_NBYTES = 32
"""Of each number of the logits: a copy in float32, weights, sorted values, and two sums in int64."""
_TOWER_ROOM = 8, 3
"""Hidden states and inner activations of an MLP that a tower's layer holds for each patch."""
MAX_PATCHES = 4096
"""Of one picture; room for more is taken when they come."""
BATCH_IMAGES = 16
"""Of one call of a vision tower, without --visual-batch-size."""


class Card(NamedTuple):
    """A device's memory at a moment."""

    total_nbytes: int
    free_nbytes: int

    @property
    def used_nbytes(self) -> int:
        """By all processes together."""
        return self.total_nbytes - self.free_nbytes


class RankShare(NamedTuple):
    """What one rank takes beside what it holds already."""

    step_nbytes: int
    """That the largest step computes in."""
    graphs_nbytes: int


def kv_nbytes(card: Card, share: RankShare, utilization: float, ranks: int = 1) -> int:
    """Of the KV cache of each of the ``ranks`` on this card; 0 if there is no room.

    ``card``: once all processes on it hold their weights, and the visual servers their room for pictures.
    ``utilization``: the part of the card that may be used, by whomever.
    """
    margin = _MARGIN_NBYTES + card.total_nbytes // _MARGIN_PART
    left = int(card.total_nbytes * utilization) - card.used_nbytes - margin
    return max(0, left // ranks - share.step_nbytes - share.graphs_nbytes)


def least_card_nbytes(needed_nbytes: int, utilization: float) -> int:
    """Of the smallest card on which so much may be used."""
    return int((needed_nbytes + _MARGIN_NBYTES) / max(1e-3, utilization - 1 / _MARGIN_PART)) + 1


def graphs_nbytes(rungs: Sequence[int], step_nbytes: int, step_rows: int, vocab_size: int) -> int:
    """Of the graphs of these numbers of rows. ``step_nbytes``: that a step of ``step_rows`` computes in."""
    if not rungs:
        return 0
    logits = _GRAPH_LOGIT_NBYTES * max(rungs) * vocab_size
    return len(rungs) * _GRAPH_NBYTES + -(-step_nbytes * max(rungs) // step_rows) + logits


def sampler_nbytes(max_num_seqs: int, vocab_size: int) -> int:
    """That choosing a token of every sequence computes in."""
    return _SAMPLER_NBYTES * max_num_seqs * vocab_size


def step_nbytes(rows: int, hidden_size: int, intermediate_size: int, ranks: int, dtype_nbytes: int) -> int:
    """An estimate of what the largest step computes in, for where no card can be asked: hidden states, heads, and both
    halves of an MLP."""
    return rows * (6 * hidden_size + 3 * intermediate_size // ranks) * dtype_nbytes


def tower_nbytes(
    images: int, patches_per_image: int, hidden_size: int, intermediate_size: int, dtype_nbytes: int
) -> int:
    """That a vision tower computes in for so many pictures together."""
    of_hidden, of_inner = _TOWER_ROOM
    patches = images * min(patches_per_image, MAX_PATCHES)
    return patches * (of_hidden * hidden_size + of_inner * intermediate_size) * dtype_nbytes


def card_of(index: int, devices: Sequence[int], num_cards: int) -> int:
    """The card of a rank or a visual server. ``devices``: --visual-devices; without it all cards are taken in turn.

    Raises ValueError if there is no such card.
    """
    card = devices[index % len(devices)] if devices else index % num_cards
    if card >= num_cards:
        raise ValueError(f"there is no GPU {card}; they are 0 to {num_cards - 1}")
    return card


def ranks_on(card: int, ranks: int, num_cards: int) -> tuple[int, ...]:
    """Those of so many ranks that are on this card."""
    return tuple(rank for rank in range(ranks) if card_of(rank, (), num_cards) == card)


def shares_cards(devices: Sequence[int], ranks: int) -> bool:
    """True if a visual server may be on a rank's card."""
    return not devices or min(devices) < ranks
