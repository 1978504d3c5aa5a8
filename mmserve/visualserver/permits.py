"""Which requests hold a turn at decoding, and when it is over: no image left to begin, and all pixels begun under it
with the encoder. A request that is dropped keeps its turn until then, for a thread is still decoding. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable


class PermitHolders:
    """Names are of one attempt of one request each."""

    def __init__(self) -> None:
        self._images: dict[str, set[int]] = {}
        """Turn -> images that are decoded under it and not with the encoder yet."""
        self._last: set[str] = set()
        """PermitHolders under which no more images begin."""
        self._ended: list[str] = []

    @property
    def none_to_begin(self) -> bool:
        """Is every image that has a turn decoded, or being decoded?"""
        return all(name in self._last for name in self._images)

    def begin(self, name: str) -> None:
        self._images[name] = set()

    def decode(self, name: str, item_ids: Iterable[int]) -> None:
        """These images are decoded under it from now on."""
        self._images[name].update(item_ids)

    def no_more(self, name: str) -> None:
        """It begins no further image. Harmless for a turn that is over or never began."""
        if name in self._images:
            self._last.add(name)
            self._end_if_over(name)

    def give_up(self, name: str) -> None:
        """One that has not begun."""
        self._ended.append(name)

    def taken(self, item_ids: Iterable[int]) -> None:
        """The pixels are the encoder's, or there are none."""
        taken = set(item_ids)
        for name in list(self._images):
            self._images[name] -= taken
            self._end_if_over(name)

    def ended(self) -> list[str]:
        """PermitHolders that are over since the last look."""
        ended, self._ended = self._ended, []
        return ended

    def _end_if_over(self, name: str) -> None:
        if name in self._last and not self._images[name]:
            del self._images[name]
            self._last.discard(name)
            self._ended.append(name)
