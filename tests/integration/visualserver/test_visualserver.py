"""The visual server end to end over real sockets, with a fake tower."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.request import AbortRequest
from tests.fakes.pictures.cache import alloc_item, serving_cache, until
from tests.fakes.pictures.media import png, truncated
from tests.fakes.processes.samples import counted
from tests.integration.visualserver.stack import Stack, play


@pytest.mark.parametrize("batched", [False, True], ids=["v1", "v2"])
def test_all_images_are_told_once_with_their_rows_in_the_arena(tmp_path: Path, batched: bool) -> None:
    async def scenario(stack: Stack) -> None:
        requests = [stack.send(f"r{n}", png(n), png(n + 100)) for n in range(6)]
        received = await stack.received(6)
        assert received == stack.sent
        rows = [stack.rows(request, index) for request in requests for index in (0, 1)]
        assert all(torch.equal(row, row[:1, :1].expand_as(row)) for row in rows)
        assert len({float(row[0, 0]) for row in rows}) == 12, "every picture has its own rows"
        assert len(set(stack.tower.threads)) == 1
        assert len(stack.tower.threads) == len(stack.tower.batches) + 1, "the thread began once, and called the tower"

    play(tmp_path, scenario, enable_concurrent_alloc=batched)


def test_images_that_arrive_while_the_tower_computes_are_batched_across_requests(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("first", png(0))
        await stack.encoding()
        stack.send("second", png(1))
        for number in range(2, 12):
            stack.send(f"r{number}", png(number))
        stack.tower.gate.set()
        assert await stack.received(12) == stack.sent
        assert sum(stack.tower.batches) == 12
        assert len(stack.tower.batches) <= 7  # a call of the tower takes two on a CPU

    play(tmp_path, scenario, visual_batch_size=4)


def test_the_same_picture_from_32_requests_is_encoded_once(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        early = stack.request("early", png(7))
        for number in range(32):
            stack.send(f"r{number}", png(7))
        await stack.received(32)
        stack.visual.send(early)
        assert await stack.received(1) == {"early": early}, "the router does not know that it is encoded"
        assert stack.tower.batches == [1]
        assert [span.data for span in stack.request("later", png(7)).spans] == [None]

    play(tmp_path, scenario)


def test_a_broken_picture_aborts_only_its_own_request(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.send("good", png(1))
        stack.send("bad", png(2), truncated(png(3)))
        stack.send("also good", png(2))
        received = await stack.received(3)
        assert received["good"] == stack.sent["good"]
        assert received["also good"] == stack.sent["also good"]
        bad = received["bad"]
        assert isinstance(bad, AbortRequest)
        assert (bad.reason, bad.media_index, bad.reply_to) == ("media_error", 1, 2)
        assert "truncated" in bad.message

    play(tmp_path, scenario)


def test_aborted_requests_are_not_answered(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("encoding", png(1))
        await stack.encoding()
        stack.send("waiting", png(2))
        await stack.abort("encoding", "waiting", "never seen")
        stack.tower.gate.set()
        stack.send("next", png(3))
        assert await stack.received(1) == {"next": stack.sent["next"]}

    play(tmp_path, scenario)


def test_the_first_of_many_images_is_told_before_the_others_are_encoded(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        request = stack.send("r", *(png(number) for number in range(4)))
        await stack.encoding()
        stack.tower.gate.set()
        await stack.received(1)
        assert stack.told["r"] == [span.item_id for span in request.spans]
        assert stack.tower.batches == [1, 1, 1, 1]

    play(tmp_path, scenario, visual_batch_size=1)


def test_an_image_whose_bytes_were_evicted_is_reported_as_lost(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        request = stack.request("r", png(1))
        stack.client.release("r")
        filler = stack.client.alloc("filler", [alloc_item("large", data_nbytes=stack.arena.nbytes - 320)], wait_s=5)
        assert filler
        stack.visual.send(request)
        (message,) = (await stack.received(1)).values()
        assert isinstance(message, AbortRequest)
        assert message.reason == "media_lost"

    play(tmp_path, scenario)


def test_a_cache_server_restart_while_encoding_loses_images_and_corrupts_none(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("r", png(1))
        await stack.encoding()
        stack.cache.close()
        stack.cache.enter_context(serving_cache(Endpoints(tmp_path), stack.arena))
        stack.tower.gate.set()
        (message,) = (await stack.received(1)).values()
        assert isinstance(message, AbortRequest)
        assert message.reason == "media_lost"
        request = stack.request("again", png(1))
        stack.visual.send(request)
        assert await stack.received(1) == {"again": request}
        assert stack.rows(request).isfinite().all()

    play(tmp_path, scenario)


def test_without_a_cache_server_images_are_lost(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        request = stack.request("r", png(1))
        stack.cache.close()
        stack.visual.send(request)
        (message,) = (await stack.received(1)).values()
        assert isinstance(message, AbortRequest)
        assert message.reason == "media_lost"

    play(tmp_path, scenario)


def test_metrics_cover_every_stage(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.send("good", png(1), png(2))
        stack.send("bad", truncated(png(3)))
        await stack.received(2)

        def all_seen() -> bool:
            seen: dict[str, float] = {}
            for (name, *_), value in counted(stack.process.endpoints).items():
                seen[name] = seen.get(name, 0) + value
            wanted = {"mm_queue_seconds", "mm_decode_seconds", "mm_encode_seconds"}
            images = seen.get("mm_images_encoded") == 2 and seen.get("mm_images_failed") == 1
            rows_nbytes = 2 * stack.num_tokens * stack.process.deployment.embed_row_nbytes
            copied = seen.get("mm_copied_bytes") == rows_nbytes
            return wanted <= set(seen) and images and copied and seen.get("mm_encode_batch_size") == 2

        await asyncio.to_thread(until, all_seen)

    play(tmp_path, scenario)


def test_sigterm_ends_the_server(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.send("r", png(1))
        await stack.received(1)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await stack.server

    play(tmp_path, scenario)
