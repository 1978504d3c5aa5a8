"""What images become is asked of a visual server once a size, with a deadline, and again after its restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mmserve.httpserver.call import MediaItem
from mmserve.httpserver.engine import row_counts
from mmserve.httpserver.engine.row_counts import RowCounts
from mmserve.messages.media import ExpandedImage, Size
from mmserve.messages.reply import ImageRows, ServerPhase
from mmserve.messages.request import CountImageRows
from mmserve.processors.interface import Run
from mmserve.runtime.errors import MediaError, Unavailable
from tests.fakes.pictures.media import COUNTED


class VisualServer:
    """Takes questions, and answers them when it is told to: one row for each pixel of height, in lines of two."""

    def __init__(self, timeout_s: float = 60) -> None:
        self.asked: list[tuple[int, CountImageRows]] = []
        self.counts = RowCounts(3, COUNTED, self, 1, timeout_s=timeout_s)

    def count(self, visual_server: int, message: CountImageRows) -> None:
        self.asked.append((visual_server, message))

    @property
    def sizes(self) -> list[Size]:
        return [size for _, message in self.asked for size in message.sizes]

    def answer(self) -> None:
        for _, message in self.asked:
            expansions = tuple(
                ExpandedImage("<begin><image><end>", ((1, height, 2),)) if height > 1 else None
                for _, height in message.sizes
            )
            self.counts.deliver(ImageRows(sizes=message.sizes, expansions=expansions))

    async def rows(self, *sizes: Size) -> list[int]:
        """Answers the questions for these images."""
        asking = asyncio.create_task(self.counts.with_counts(images(*sizes)))
        await asyncio.sleep(0)
        self.answer()
        return [item.counted.num_rows for item in await asking if item.counted is not None]


def images(*sizes: Size) -> list[MediaItem]:
    return [MediaItem(b"x", *size, b"key", f"part{index}") for index, size in enumerate(sizes)]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(limited())


def test_each_size_is_asked_once() -> None:
    async def test() -> None:
        server = VisualServer()
        assert await server.rows((10, 5), (20, 7), (10, 5)) == [10, 14, 10]
        assert server.asked == [(1, CountImageRows(reply_to=3, sizes=((10, 5), (20, 7))))]
        assert await server.rows((20, 7), (3, 3)) == [14, 6]
        assert server.sizes == [(10, 5), (20, 7), (3, 3)]
        (item,) = await server.counts.with_counts(images((20, 7)))
        assert item.counted == ("<begin><image><end>", (Run(14, (1, 7, 2)),))

    run(test)


def test_requests_at_once_share_a_question() -> None:
    async def test() -> None:
        server = VisualServer()
        first = asyncio.create_task(server.counts.with_counts(images((10, 5))))
        second = asyncio.create_task(server.counts.with_counts(images((10, 5))))
        await asyncio.sleep(0)
        assert server.sizes == [(10, 5)]
        first.cancel()
        await asyncio.sleep(0)
        server.answer()
        (item,) = await second
        assert item.counted is not None

    run(test)


def test_a_question_has_a_deadline_and_is_repeated_for_those_who_still_wait() -> None:
    async def test() -> None:
        server = VisualServer(timeout_s=0.05)
        with pytest.raises(Unavailable, match="in time"):
            await server.counts.with_counts(images((10, 5)))
        assert server.sizes == [(10, 5)] * 2
        assert await server.rows((10, 5)) == [10]
        assert server.sizes == [(10, 5)] * 2

    run(test)


def test_a_visual_server_that_has_restarted_is_asked_again() -> None:
    async def test() -> None:
        server = VisualServer()
        for epochs in ((1, 1), (2, 1)):
            server.counts.on_phase(ServerPhase(phase="ready", ready=True, visual_epochs=epochs))
        asking = asyncio.create_task(server.counts.with_counts(images((10, 5))))
        await asyncio.sleep(0)
        server.counts.on_phase(ServerPhase(phase="ready", ready=True, visual_epochs=(3, 1)))
        assert len(server.asked) == 1, "the other one"
        server.counts.on_phase(ServerPhase(phase="ready", ready=True, visual_epochs=(3, 2)))
        assert server.sizes == [(10, 5)] * 2
        server.answer()
        assert len(await asking) == 1

    run(test)


@pytest.mark.parametrize(
    ("size", "reason"), [((9, 1), "cannot process"), ((9, 51), "takes 102 tokens, more than the 100")]
)
def test_an_image_that_cannot_be_taken_is_refused_by_its_field(size: Size, reason: str) -> None:
    async def test() -> None:
        server = VisualServer()
        for _ in range(2):
            with pytest.raises(MediaError, match=reason) as refused:
                await server.rows((10, 50), size)
            assert refused.value.param == "part1"

    run(test)


def test_few_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_counts, "MAX_KNOWN", 2)

    async def test() -> None:
        server = VisualServer()
        assert await server.rows((1, 5), (1, 6), (1, 7)) == [10, 12, 14], "also if they are more than are kept"
        server.asked.clear()
        assert await server.rows((1, 6)) == [12]
        assert await server.rows((1, 8)) == [16]
        assert await server.rows((1, 6)) == [12]
        assert server.sizes == [(1, 8)]

    run(test)
