"""HTTP workers get the rows of images of the sizes that they ask for."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from mmserve.messages.media import ExpandedImage, Size
from mmserve.messages.reply import ImageRows
from mmserve.messages.request import CountImageRows
from mmserve.visualserver.row_counter import RowCounter


def image(rows: int) -> ExpandedImage:
    return ExpandedImage("<image>", ((1, 1, rows),))


class Tower:
    def expansions(self, sizes: Sequence[Size]) -> list[ExpandedImage | None]:
        if (0, 0) in sizes:
            raise RuntimeError("a bug")
        return [image(width) if width else None for width, _ in sizes]


Sent = queue.SimpleQueue[tuple[int, ImageRows]]


class Link:
    def __init__(self, worker: int, sent: Sent) -> None:
        self._worker, self._sent = worker, sent
        self.closed = False

    def send(self, message: ImageRows) -> None:
        self._sent.put((self._worker, message))

    def close(self) -> None:
        self.closed = True


def test_each_worker_gets_its_answers_and_a_bug_ends_nothing() -> None:
    links: dict[int, Link] = {}
    sent: Sent = queue.SimpleQueue()

    def link(worker: int) -> Any:
        assert worker not in links, "one link a worker"
        links[worker] = Link(worker, sent)
        return links[worker]

    counter = RowCounter(Tower(), link)
    for worker, sizes in ((2, ((3, 4), (0, 9))), (0, ((5, 5),)), (2, ((0, 0),)), (2, ((7, 1),))):
        counter.receive(CountImageRows(reply_to=worker, sizes=sizes))
    assert [sent.get(timeout=20) for _ in range(3)] == [
        (2, ImageRows(sizes=((3, 4), (0, 9)), expansions=(image(3), None))),
        (0, ImageRows(sizes=((5, 5),), expansions=(image(5),))),
        (2, ImageRows(sizes=((7, 1),), expansions=(image(7),))),
    ]
    counter.close()
    assert all(link.closed for link in links.values())
