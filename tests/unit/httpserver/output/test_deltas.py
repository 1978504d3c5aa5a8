"""The stream of deltas between the task that makes an answer and the connection that reads it."""

from __future__ import annotations

import asyncio

import pytest

from mmserve.httpserver.output.deltas import DeltaStream, TextDelta, Usage
from mmserve.runtime.errors import MmserveError, Unavailable


def test_the_stream_ends_with_its_last_choice_and_counts_usage() -> None:
    async def test() -> None:
        stream = DeltaStream(2)
        stream.open(prompt_tokens=10, image_tokens=4)
        stream.push(TextDelta(0, "a", 1, None, 3))
        stream.push(TextDelta(1, "b", 2, "stop", 9))  # it reused the prefix that the first one had computed
        assert not stream.complete
        stream.push(TextDelta(0, "c", 1, "length"))
        assert stream.complete
        stream.fail(MmserveError("ignored: the answer is complete"))
        assert [delta.text async for delta in stream] == ["a", "b", "c"]
        assert stream.usage == Usage(10, 4, 3, 4)

    asyncio.run(test())


def test_a_failed_stream_raises_after_the_deltas_before_it() -> None:
    async def test() -> None:
        stream = DeltaStream(1)
        stream.push(TextDelta(0, "a", 1))
        stream.fail(Unavailable("gone"))
        assert (await anext(stream)).text == "a"
        with pytest.raises(Unavailable):
            await anext(stream)

    asyncio.run(test())
