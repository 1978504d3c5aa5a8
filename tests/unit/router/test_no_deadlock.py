"""Arena space, decode permits, slots and KV blocks, all of them scarce: no request waits for ever for any of them.

The parts are the real ones: the cache server's table, a visual server's queue, the scheduler. Only the payload, the
sockets and the clock are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from mmserve.cache_server.waiting.decode_permits import DecodePermits
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.cache import AllocItem, AllocReply, PermitsReply
from mmserve.messages.media import MediaSpan
from mmserve.messages.request import AbortRequest, EncodeRequest, GenerateRequest
from mmserve.visualserver.images import ENCODED, LOST, Outcome
from mmserve.visualserver.queue.batch_queue import Answer, BatchQueue
from tests.fakes.pictures.marks import NoMarks
from tests.unit.router.builders import Encoders, Engine, abort, request

HTTP, VISUAL = "http", "visual"
ROWS, PIXELS_NBYTES = 20, 100
DATA_NBYTES, EMBED_NBYTES = 300, 700
ARENA_NBYTES = 3 * (DATA_NBYTES + EMBED_NBYTES + 400)
"""For the images of the largest request, and few beside them."""
LONG_S = 500.0


@dataclass(frozen=True)
class Job:
    """A client's request: text, then images of these contents, each with a text behind it."""

    contents: tuple[int, ...]
    text: int
    max_tokens: int


jobs = st.lists(
    st.builds(
        Job,
        contents=st.lists(st.integers(0, 5), max_size=3).map(tuple),
        text=st.sampled_from([0, 5, 30]),
        max_tokens=st.integers(1, 30),
    ),
    min_size=2,
    max_size=8,
)


class Waiting:
    """A call to the cache server that may have to wait."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._is_done: bool = getattr(call, "_is_done", True)
        if not self._is_done:
            call.when_done(self._done)

    def _done(self) -> None:
        self._is_done = True

    @property
    def reply(self) -> Any:
        """None: it waits."""
        return self._call.result() if self._is_done else None


class VisualServer(Encoders):
    """A real queue between the scheduler and a tower that computes nothing."""

    def __init__(self, table: SharedMediaTable, broken: set[int]) -> None:
        super().__init__()
        self._table = table
        self._broken = broken
        self.num_encoded = 0
        self.start()

    def start(self) -> None:
        self.queue = BatchQueue(2)
        self._asking: tuple[dict[str, Any], Waiting] | None = None
        self._table.connect(VISUAL)

    def die(self) -> None:
        self._table.disconnect(VISUAL)

    def receive(self, messages: list[tuple[int, EncodeRequest | AbortRequest]]) -> None:
        for _, message in messages:
            if isinstance(message, AbortRequest):
                self.queue.drop(message.id)
            else:
                assert self.queue.add(message, 0.0) == []
        self._release_permits()

    def ask_for_permits(self) -> bool:
        """Asks for permits, or takes the answer. False: there is nothing to ask for, and no answer yet."""
        if self._asking is None:
            candidates = self.queue.permit_candidates()
            if not candidates:
                return False
            asked = [candidate.permit_request for candidate in candidates]
            call = self._table.acquire_permits(VISUAL, asked, LONG_S)
            self._asking = {each.pending.permit_name: each.pending for each in candidates}, Waiting(call)
        pendings, waiting = self._asking
        for pending in pendings.values():
            if not self.queue.is_pending(pending):
                self._table.release_permit(Lease(VISUAL, pending.permit_name))
        reply: PermitsReply | None = waiting.reply
        if reply is None:
            return False
        self._asking = None
        for name in reply.granted:
            self.queue.grant(pendings[name])
        if reply.promised:
            self.queue.promise(pendings[reply.promised])
        self._release_permits()
        return True

    def encode(self) -> list[Answer]:
        """Decodes and encodes the next batch. Returns the messages for the router."""
        batch = self.queue.next_batch()
        if batch is None:
            return []
        ids = [image.item_id for image in batch.images]
        states = self._table.get_embed(VISUAL, ids)
        pending = [item_id for item_id, state in zip(ids, states, strict=True) if state == "pending"]
        self._table.set_embed(VISUAL, pending, [item_id not in self._broken for item_id in pending])
        self.queue.permits.decoded(ids)
        self.num_encoded += len(pending)
        outcomes = {item_id: self._outcome(item_id) for item_id in ids}
        self.encoded |= {item_id for item_id, outcome in outcomes.items() if outcome is ENCODED}
        messages = self.queue.finish(outcomes, 0.0)
        self._release_permits()
        return messages

    def _outcome(self, item_id: int) -> Outcome:
        if item_id in self._broken:
            return Outcome("media_error", "broken")
        return ENCODED if self._table.get_embed(VISUAL, [item_id]) == ("ready",) else LOST

    def _release_permits(self) -> None:
        for name in self.queue.permits.take_ended():
            self._table.release_permit(Lease(VISUAL, name))


class World:
    """Every move is what one process does at once. Returns False if it had nothing to do."""

    def __init__(self, todo: list[Job], broken: set[int], num_blocks: int, max_num_seqs: int, depth: int) -> None:
        table = MediaTable(
            ARENA_NBYTES,
            first_generation=1,
            first_item_id=1,
            first_token=FIRST_VIRTUAL_TOKEN,
            arena=NoMarks(),
            budgets=LeaseBudgets(ARENA_NBYTES, ARENA_NBYTES),
        )
        self.table = SharedMediaTable(table, DecodePermits(1, sys.maxsize), clock=lambda: 0.0)
        self.table.connect(HTTP)
        self.broken_contents, self.broken = broken, set[int]()
        self.visual = VisualServer(self.table, self.broken)
        self.options = {"num_blocks": num_blocks, "max_num_seqs": max_num_seqs, "depth": depth}
        self.start_engine()
        self.todo = list(enumerate(todo))
        self.allocs: dict[str, tuple[Job, Waiting]] = {}
        self.live: dict[str, GenerateRequest] = {}
        self.finished: dict[str, str | None] = {}

    def start_engine(self) -> None:
        self.engine = Engine(**self.options)
        self.engine.encoders = self.visual

    # HTTP workers

    def arrive(self) -> bool:
        if not self.todo:
            return False
        number, job = self.todo.pop(0)
        items = [
            AllocItem(b"content %d" % each, ROWS, DATA_NBYTES, EMBED_NBYTES) for each in dict.fromkeys(job.contents)
        ]
        reply = self.table.alloc(Lease(HTTP, str(number)), items, LONG_S)
        self.allocs[str(number)] = job, Waiting(reply)
        return True

    def submit(self) -> bool:
        """Sends the first request whose images are all in the arena."""
        for name, (job, waiting) in self.allocs.items():
            if (reply := waiting.reply) is not None and self._write(name, reply):
                del self.allocs[name]
                self._submit(name, job, reply)
                return True
        return False

    def _write(self, name: str, reply: AllocReply) -> bool:
        """Writes the images that no other request writes. False: another has one to write yet."""
        assert not reply.refused
        lease, ids = Lease(HTTP, name), [each.item_id for each in reply.records]
        states = dict(zip(ids, self.table.get_data(lease, ids, 0.0).result(), strict=True))
        self.table.set_data(lease, [item_id for item_id in ids if states[item_id] == "write"], True)
        return "wait" not in states.values()

    def _submit(self, name: str, job: Job, reply: AllocReply) -> None:
        records = dict(zip(dict.fromkeys(job.contents), reply.records, strict=True))
        self.broken.update(records[each].item_id for each in self.broken_contents & records.keys())
        prompt, spans = list(range(100, 100 + job.text)), list[MediaSpan]()
        for content in job.contents:
            record = records[content]
            span = MediaSpan(
                start=len(prompt),
                num_tokens=ROWS,
                item_id=record.item_id,
                data=None if record.state == "hit" else record.data,
                embed=record.embed,
                media_index=len(spans),
                decoded_nbytes=PIXELS_NBYTES,
            )
            spans.append(span)
            prompt += [*range(record.token_start, record.token_start + ROWS), *range(200, 205)]
        self.send(request(name, [*prompt, 7], max_tokens=job.max_tokens, spans=tuple(spans)))

    def send(self, message: GenerateRequest) -> None:
        self.live[message.id] = message
        self.engine.scheduler.receive(message)
        self.deliver()

    def abort(self) -> bool:
        """The oldest client leaves."""
        if not self.live:
            return False
        message = next(iter(self.live.values()))
        self.engine.scheduler.receive(abort(message.id, attempt=message.attempt))
        return self.deliver()

    def deliver(self) -> bool:
        """Brings all messages of the router where they belong."""
        self.visual.receive(self.engine.scheduler.take_encoder_messages())
        self.engine.take_replies()
        for name, message in list(self.live.items()):
            if finish := self.engine.finish(name, message.attempt):
                del self.live[name]
                self.finished[name] = finish
                self.table.release(Lease(HTTP, name))
        return True

    # Other processes

    def ask_for_permits(self) -> bool:
        return self.visual.ask_for_permits()

    def encode(self) -> bool:
        answers = self.visual.encode()
        for answer in answers:
            self.engine.scheduler.receive(answer)
        self.deliver()
        return bool(answers)

    def step(self) -> bool:
        plan = self.engine.run_step()
        self.engine.check_memory()
        self.deliver()
        return plan is not None

    def restart_visual(self) -> bool:
        self.visual.die()
        self.visual.start()
        return self._resend()

    def restart_engine(self) -> bool:
        self.start_engine()
        return self._resend()

    def _resend(self) -> bool:
        for message in list(self.live.values()):
            self.send(structs.replace(message, attempt=message.attempt + 1))
        return bool(self.live)

    def run_to_the_end(self) -> None:
        moves: list[Callable[[], bool]] = [self.arrive, self.submit, self.ask_for_permits, self.encode, self.step]
        while sum(move() for move in moves):
            pass


MOVES = ["arrive", "submit", "ask_for_permits", "encode", "step", "step", "abort", "restart_visual", "restart_engine"]


@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    jobs,
    st.sets(st.integers(0, 5), max_size=1),
    st.sampled_from([9, 12, 40]),
    st.integers(1, 4),
    st.lists(st.sampled_from(MOVES), max_size=60),
)
def test_every_request_ends_and_leaves_nothing(
    depth: int, todo: list[Job], broken: set[int], num_blocks: int, max_num_seqs: int, moves: list[str]
) -> None:
    world = World(todo, broken, num_blocks, max_num_seqs, depth)
    for move in moves:
        getattr(world, move)()
    world.run_to_the_end()
    assert sorted(world.finished, key=int) == [str(number) for number in range(len(todo))]
    for number, job in enumerate(todo):
        allowed = {"length", "abort"} | ({"media_error"} if broken & set(job.contents) else set())
        assert world.finished[str(number)] in allowed
    snapshot = world.table.snapshot()
    assert (snapshot.num_leases, snapshot.num_permits, snapshot.num_permits_waiting, snapshot.num_waiting) == (0,) * 4
    assert len(world.visual.queue) == 0
    assert (world.engine.scheduler.kv.num_used, world.engine.scheduler.num_running) == (0, 0)
    assert not world.engine.scheduler._waiting._awaiting_images


def test_blocks_and_arena_space_that_two_requests_hold_do_not_wait_for_each_other() -> None:
    """One has computed its text and waits for its image, while another has an image and waits for blocks."""
    world = World([Job((0, 1), 30, 30), Job((2,), 30, 30), Job((3, 4), 30, 30)], set(), 9, 1, 1)
    for _ in range(3):
        world.arrive()
    while world.submit() or world.step():
        pass
    assert list(world.allocs) == ["2"], "it waits for arena space"
    assert world.engine.rank.num_tokens_computed == 30, "the second one found its text in the prefix cache"
    assert world.engine.scheduler.kv.num_used == 0, "whoever waits for an image holds no blocks"
    world.run_to_the_end()
    assert world.finished == dict.fromkeys("012", "length")
    assert world.visual.num_encoded == 5


def test_the_same_image_twice_in_a_request_and_in_two_requests_is_encoded_once() -> None:
    world = World([Job((0, 0), 30, 3), Job((0,), 30, 3), Job((0, 0, 0), 5, 3)], set(), 40, 4, 1)
    world.run_to_the_end()
    assert world.finished == dict.fromkeys("012", "length")
    assert world.visual.num_encoded == 1


def test_a_broken_image_ends_the_requests_that_need_it_alone() -> None:
    world = World([Job((0, 1), 30, 3), Job((2,), 30, 3), Job((1,), 0, 3), Job((), 30, 3)], {1}, 40, 4, 1)
    for _ in range(4):
        world.arrive()
    world.run_to_the_end()
    assert world.finished == {"0": "media_error", "1": "length", "2": "media_error", "3": "length"}
