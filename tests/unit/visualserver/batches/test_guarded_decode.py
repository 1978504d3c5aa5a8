"""Which pictures are decoded in a child process, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mmserve.messages.media import DEFAULT_PROCESSING, Processing
from mmserve.processors.image_processors import ImageProcessors
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MediaError, MmserveError
from mmserve.visualserver.batches.guarded_decode import ISOLATION_S, OVERDUE_S, GuardedDecoder
from mmserve.visualserver.batches.work_journal import MAX_DEATHS, WorkJournal
from tests.fakes.pictures.media import one_tile


class _Decoder:
    """Records what it decodes, and how it is processed. ``b"deadly"`` ends the child."""

    def __init__(self) -> None:
        self.decoded: list[bytes] = []
        self.processed: list[Processing] = []
        self.whole: list[bytes] = []
        self.num_killed = 0
        self.work: Any = lambda: None

    def of(self, processing: Processing) -> _Decoder:
        """As ImageProcessors."""
        self.processed.append(processing)
        return self

    def views(self, data: bytes, processing: Processing | None = None, *, whole: bool = False) -> Views:
        self.decoded.append(data)
        if whole:
            self.whole.append(data)
        if processing is not None:
            self.processed.append(processing)
        self.work()
        if data == b"deadly":
            self.num_killed += 1
            raise MediaError("it ends its decoder")
        return one_tile(0)

    def end_idle(self) -> None: ...

    def close(self) -> None: ...


class _Server:
    """One start of a visual server."""

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.here, self.child, self.now_s = _Decoder(), _Decoder(), 1000.0
        self.journal = WorkJournal(path / "work", 4)
        self.decoder = GuardedDecoder(
            cast(ImageProcessors, self.here), self.child, self.journal, whole=whole, now=lambda: self.now_s
        )


def _killed_while_decoding(path: Path, item_id: int) -> _Server:
    """The successor of a server that died while it decoded the image."""
    first, successors = _Server(path), []
    first.here.work = lambda: successors.append(_Server(path))
    first.decoder.views(item_id, b"x", DEFAULT_PROCESSING)
    return successors[0]


def test_pictures_are_decoded_here_as_long_as_nothing_happens(tmp_path: Path) -> None:
    server = _Server(tmp_path)
    server.decoder.views(1, b"a", DEFAULT_PROCESSING)
    assert (server.here.decoded, server.child.decoded) == ([b"a"], [])
    assert _Server(tmp_path).journal.suspects == {}


def test_pictures_stay_whole_where_the_device_makes_views_but_for_those_of_the_child(tmp_path: Path) -> None:
    first, successors = _Server(tmp_path), []
    first.here.work = lambda: successors.append(_Server(tmp_path, whole=True))
    first.decoder.views(7, b"resized", DEFAULT_PROCESSING)
    (server,) = successors
    server.decoder.views(7, b"suspect", DEFAULT_PROCESSING)
    server.now_s += ISOLATION_S
    server.decoder.views(8, b"whole", DEFAULT_PROCESSING)
    assert server.child.decoded == [b"suspect"]
    assert (first.here.whole, server.child.whole, server.here.whole) == ([], [], [b"whole"])


def test_a_picture_is_processed_as_its_request_wants_here_and_in_the_child(tmp_path: Path) -> None:
    small = Processing('{"max_pixels":784}', 2)
    server = _killed_while_decoding(tmp_path, 7)
    server.decoder.views(7, b"there", small)
    server.now_s += ISOLATION_S
    server.decoder.views(8, b"here", small)
    assert (server.child.processed, server.here.processed) == ([small], [small])


def test_after_a_death_a_suspect_is_isolated_and_so_are_all_for_a_while(tmp_path: Path) -> None:
    server = _killed_while_decoding(tmp_path, 7)
    server.decoder.views(8, b"another", DEFAULT_PROCESSING)
    server.now_s += ISOLATION_S
    server.decoder.views(8, b"later", DEFAULT_PROCESSING)
    server.decoder.views(7, b"the suspect", DEFAULT_PROCESSING)
    assert server.child.decoded == [b"another", b"the suspect"]
    assert server.here.decoded == [b"later"]


def test_a_death_of_the_child_prolongs_the_isolation(tmp_path: Path) -> None:
    server = _killed_while_decoding(tmp_path, 7)
    server.now_s += ISOLATION_S - 1
    with pytest.raises(MediaError):
        server.decoder.views(7, b"deadly", DEFAULT_PROCESSING)
    server.now_s += ISOLATION_S - 1
    server.decoder.views(8, b"another", DEFAULT_PROCESSING)
    assert server.here.decoded == []
    server.now_s += 2
    server.decoder.views(8, b"later", DEFAULT_PROCESSING)
    assert server.here.decoded == [b"later"]


def test_an_image_during_whose_work_the_server_dies_again_and_again_is_refused(tmp_path: Path) -> None:
    """Its decoding works in the child, so that encoding it is the cause, or chance."""
    for _ in range(MAX_DEATHS):
        with _Server(tmp_path).journal.working([7]):
            server = _Server(tmp_path)
    with pytest.raises(MmserveError, match=f"died {MAX_DEATHS} times"):
        server.decoder.views(7, b"x", DEFAULT_PROCESSING)
    assert server.here.decoded == server.child.decoded == []


def test_a_picture_is_overdue_after_a_time(tmp_path: Path) -> None:
    server, seen = _Server(tmp_path), []

    def work() -> None:
        seen.append(server.decoder.is_overdue)
        server.now_s += OVERDUE_S + 1
        seen.append(server.decoder.is_overdue)

    server.here.work = work
    server.decoder.views(1, b"a", DEFAULT_PROCESSING)
    assert [*seen, server.decoder.is_overdue] == [False, True, False]
