"""Which encoder gets a picture, or whether it is encoded here: what takes the fewest seconds. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

_WEIGHT = 0.2
"""Of the latest measurement in a moving average."""
_FIRST_BYTE_S = 1e-8
"""Seconds a byte, 100 MB/s, until a transfer was measured."""


@dataclass
class Pace:
    """Moving averages of one encoder, or of this visual server. None: not measured yet."""

    image_s: float | None = None
    byte_s: float = _FIRST_BYTE_S

    def encoded(self, seconds: float) -> None:
        """Of one picture, decoded and encoded."""
        self.image_s = seconds if self.image_s is None else self.image_s + _WEIGHT * (seconds - self.image_s)

    def transferred(self, nbytes: int, seconds: float) -> None:
        self.byte_s += _WEIGHT * (max(0.0, seconds) / max(1, nbytes) - self.byte_s)


@dataclass(frozen=True)
class Candidate:
    """An encoder with room for the picture."""

    name: str
    waiting: int
    """Pictures that it has not answered."""
    pace: Pace


def choose(key: bytes, nbytes: int, candidates: Sequence[Candidate], here: Pace, ahead: int) -> Candidate | None:
    """None: here, where ``ahead`` pictures come before this one.

    ``nbytes``: of the picture and its rows. Pictures of one ``key`` go to one encoder, which may have their rows,
    unless another one would be faster by more than a picture's time.
    """
    if here.image_s is None or not candidates:
        return None
    image_s = here.image_s

    def seconds(candidate: Candidate) -> float:
        each_s = image_s if candidate.pace.image_s is None else candidate.pace.image_s
        return (candidate.waiting + 1) * each_s + nbytes * candidate.pace.byte_s

    own = max(candidates, key=lambda candidate: hashlib.blake2b(candidate.name.encode() + key).digest())
    fastest = min(candidates, key=seconds)
    chosen = own if seconds(own) <= seconds(fastest) + image_s else fastest
    return chosen if seconds(chosen) < (ahead + 1) * image_s else None
