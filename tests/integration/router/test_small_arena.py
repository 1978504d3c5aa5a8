"""A thousand images through an arena that holds a dozen, while sequences are preempted and resumed.

No rank reads a stale handle, every answer belongs to its own image, and no lease is left.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import msgspec
import torch

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.run import new_table
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import MediaSpan
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.ranks.engine import BLOCK_TOKENS, make_runner
from tests.unit.router.builders import request

TOKENS, HIDDEN, NUM_NEW = 16, 64, 20
ROWS_NBYTES, FILE_NBYTES = TOKENS * HIDDEN * 4, 300
KERNEL_SIZES = {"head_dim": 16, "vocab_size": 272}
"""Sizes that the C++ kernels support. With others torch computes, and its sums depend on the batch size in the last
bit."""

ROOM_FOR, AT_ONCE, IMAGES, DISTINCT = 12, 8, 1000, 40


class MediaFrontend:
    """HTTP worker and visual server in one: prepares a request for the router."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.table: MediaTable = new_table(arena)
        self._rows = torch.randn(DISTINCT, TOKENS, HIDDEN, generator=torch.manual_seed(3))

    def admit(self, name: str, image: int) -> GenerateRequest | None:
        """The request, with its image leased and written; None if the arena is full."""
        lease, item = Lease("http", name), AllocItem(bytes([image]) * 16, TOKENS, FILE_NBYTES, ROWS_NBYTES)
        reply = self.table.alloc(lease, [item])
        if reply.refused:
            assert reply.refused == "full"
            return None
        (record,) = reply.records
        if record.state == "write":
            assert record.data is not None
            self.arena.write(record.data, bytes([image]) * FILE_NBYTES)
            self.table.set_data(lease, [record.item_id], True)
            assert self.table.get_embed("visual", [record.item_id]) == ("pending",)
            self.arena.write(record.embed, self._rows[image].numpy().tobytes())
            assert self.table.set_embed("visual", [record.item_id], [True]) == ("ready",)
        prompt = [5, *range(record.token_start, record.token_start + TOKENS), 7, 8]
        span = MediaSpan(
            start=1, num_tokens=TOKENS, item_id=record.item_id, data=None, embed=record.embed, media_index=0
        )
        message = request(name, prompt, max_tokens=NUM_NEW, spans=(span,))
        return msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, temperature=0.0))

    def release(self, name: str) -> None:
        self.table.release(Lease("http", name))


def test_a_thousand_images_through_an_arena_for_a_dozen(tmp_path: Path) -> None:
    arena = Arena.create(ROOM_FOR * (extent_nbytes(ROWS_NBYTES) + extent_nbytes(FILE_NBYTES)))
    frontend, metrics = MediaFrontend(arena), list[str]()
    runner = make_runner(make_llava(tmp_path, text=KERNEL_SIZES), arena, max_model_len=64, kv_tokens=14 * BLOCK_TOKENS)
    config = SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=24, max_model_len=64)
    scheduler = Scheduler(
        config,
        num_blocks=14,
        block_tokens=runner.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: metrics.append(name),
    )
    for _ in range(300):
        scheduler._admission.kv_demand.output_lengths.observe(1)
    draw = random.Random(8)
    waiting = [(str(number), draw.randrange(DISTINCT)) for number in range(IMAGES)]
    image_of, live = dict(waiting), set[str]()
    output: dict[str, list[int]] = defaultdict(list)
    while waiting or live:
        while waiting and len(live) < AT_ONCE and (message := frontend.admit(*waiting[-1])) is not None:
            live.add(waiting.pop()[0])
            scheduler.receive(message)
        plan = scheduler.schedule()
        assert plan is not None, "live sequences can continue"
        scheduler.apply(plan, runner.step(plan))
        for _, reply in scheduler.take_replies():
            output[reply.id] += reply.token_ids
            _end(frontend, live, reply)
    assert frontend.table.num_leases == 0
    assert frontend.table.counters["mm_cache_evictions", "embed"] > IMAGES / 4
    assert metrics.count("num_preemptions") > 0
    answers: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for name, tokens in output.items():
        answers[image_of[name]].add(tuple(tokens))
    num_consistent = sum(len(each) == 1 for each in answers.values())
    expected = DISTINCT if compiler.compilers() else 0.9 * DISTINCT
    assert num_consistent >= expected, "an image's answer does not depend on preemption and batches"
    assert len({min(each) for each in answers.values()}) > DISTINCT / 2, "different images have different answers"
    del runner
    arena.close()


def _end(frontend: MediaFrontend, live: set[str], reply: TokenReply) -> None:
    if reply.finish is not None:
        assert reply.finish in ("stop", "length"), reply
        live.remove(reply.id)
        frontend.release(reply.id)
