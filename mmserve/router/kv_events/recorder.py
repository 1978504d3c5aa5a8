"""Turns what the prefix cache reports into events, held back until the step that filled the blocks has run. Pure.

A block enters the prefix cache when its step is planned. It is announced when the step's result is in, and not at all
if it has left the cache by then. Several plans may be in flight, so each ``planned`` marks how far the reports belong
to that plan, and each ``computed`` takes those of the oldest.

A block is named by a hash of its parent's name, its token ids and its extra keys. So all servers of one model give a
block the same name, if they give pictures the same content keys. Two blocks may have one name, e.g. when a picture got
other virtual ids after a restart of the cache server; the name is removed with the last of them.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.media import MediaSpan
from mmserve.router.kv_cache.prefix_cache import Node
from mmserve.router.kv_events.wire import MEDIUM, BlockRemoved, BlockStored, Event, ExtraKey


class _Stored(NamedTuple):
    """As ``CacheListener.stored`` got it."""

    nodes: Sequence[Node]
    first: int
    """Index of the first one in its prompt."""
    spans: tuple[MediaSpan, ...]
    salt: str


class _Picture(NamedTuple):
    """From its first to its last row in a prompt, text between its runs included."""

    start: int
    end: int
    key: str


class BlockRecorder:
    """A ``CacheListener``. ``placeholder_id``: token id that stands for each row of a picture."""

    def __init__(self, block_tokens: int, placeholder_id: int) -> None:
        self._block_tokens = block_tokens
        self._placeholder_id = placeholder_id
        self._reports: deque[_Stored | int] = deque()
        """Blocks that were stored, and the names of removed ones, in order."""
        self._num_reports = 0
        self._num_taken = 0
        self._marks: deque[int] = deque()
        """For each plan in flight: number of reports up to it."""
        self._names: dict[Node, int] = {}
        """Of announced blocks."""
        self._num_nodes: Counter[int] = Counter()
        """Name -> announced blocks of that name."""

    def stored(self, nodes: Sequence[Node], index: int, spans: tuple[MediaSpan, ...], salt: str) -> None:
        """See CacheListener."""
        self._report(_Stored(nodes, index, spans, salt))

    def removed(self, node: Node) -> None:
        """See CacheListener."""
        if (name := self._names.pop(node, None)) is None:
            return  # not announced yet, so it never will be; or a partial block
        self._num_nodes[name] -= 1
        if not self._num_nodes[name]:
            del self._num_nodes[name]
            self._report(name)

    def planned(self) -> None:
        """A plan was made; what was reported since the last one is its doing."""
        self._marks.append(self._num_reports)

    def computed(self) -> list[Event]:
        """The result of the oldest plan was applied. Returns what is known to be true by now."""
        mark = self._marks.popleft()
        end = mark if self._marks else self._num_reports
        events: list[Event] = []
        while self._num_taken < end:
            self._num_taken += 1
            report = self._reports.popleft()
            if isinstance(report, _Stored):
                self._announce(report, events)
            elif events and isinstance(last := events[-1], BlockRemoved):
                last.block_hashes.append(report)
            else:
                events.append(BlockRemoved([report], MEDIUM))
        return events

    def _report(self, report: _Stored | int) -> None:
        self._reports.append(report)
        self._num_reports += 1

    def _announce(self, report: _Stored, events: list[Event]) -> None:
        size = self._block_tokens
        parent: int | None = None
        event: BlockStored | None = None
        extra: list[tuple[ExtraKey, ...] | None] = []
        pictures = pictures_of(report.spans)
        for index, node in enumerate(report.nodes, report.first):
            if node.parent is None:  # has left the cache, as have those below it
                break
            if event is None:
                parent = None if node.parent.is_root else self._names[node.parent]
                event = BlockStored([], parent, [], size, None, MEDIUM, None)
            keys = extra_keys(pictures, index * size, size)
            if report.salt and not index:
                keys = (*keys, report.salt)
            tokens = self._published_ids(node)
            parent = block_name(parent, tokens, keys)
            self._names[node] = parent
            self._num_nodes[parent] += 1
            event.block_hashes.append(parent)
            event.token_ids += tokens
            extra.append(keys or None)
        if event is not None:
            event.extra_keys = extra if any(extra) else None
            events.append(event)

    def _published_ids(self, node: Node) -> array[int]:
        ids = array("q", node.key)
        if max(ids) < FIRST_VIRTUAL_TOKEN:
            return ids
        return array("q", [self._placeholder_id if each >= FIRST_VIRTUAL_TOKEN else each for each in ids])


def block_name(parent: int | None, tokens: array[int], keys: tuple[ExtraKey, ...]) -> int:
    """64 bits. Equal on all servers of a model."""
    digest = xxhash.xxh3_64(b"" if parent is None else parent.to_bytes(8, "big"))
    digest.update(tokens.tobytes())
    if keys:
        digest.update(msgspec.msgpack.encode(keys))
    return digest.intdigest()


def extra_keys(pictures: Sequence[_Picture], start: int, block_tokens: int) -> tuple[ExtraKey, ...]:
    """Of the block that begins at ``start``: the pictures in it, in order."""
    end = start + block_tokens
    return tuple((each.key, each.start - start) for each in pictures if each.start < end and each.end > start)


def pictures_of(spans: Sequence[MediaSpan]) -> list[_Picture]:
    """The pictures of a prompt, in order."""
    return [*_pictures(spans)]


def _pictures(spans: Sequence[MediaSpan]) -> Iterator[_Picture]:
    first: MediaSpan | None = None
    end = 0
    for span in spans:
        if first is not None and span.media_index != first.media_index:
            yield _Picture(first.start, end, first.key.hex())
            first = None
        first, end = first or span, span.start + span.num_tokens
    if first is not None:
        yield _Picture(first.start, end, first.key.hex())
