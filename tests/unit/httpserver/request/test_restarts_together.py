"""Engine, visual server and cache server die and start again in any order: every request is answered as if none had.

The dispatcher of an HTTP worker, its choices and the scheduler are the real ones. Messages wait in queues until the
test has them read; those of a process that has died are lost.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.call import LeasedItem
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.prompt.media_spans import runs_of
from mmserve.httpserver.request.choice import Choice
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, EncodeRequest, EngineInbound, GenerateRequest, ImagesEncoded
from mmserve.processors.interface import Expansion, Run
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, abort, request

ROWS, MAX_TOKENS, CONTEXT = 20, 12, 1024
PICTURES: list[tuple[int, ...]] = [(0,), (1, 2), (2, 0), ()]
"""Those of each request; some are in two of them."""
EXPANSION = Expansion("", (Run(ROWS, (1, 1, ROWS)),))


class Encoder:
    """What the visual server was asked for, and the images that it has encoded."""

    def __init__(self) -> None:
        self.waiting: dict[str, EncodeRequest] = {}
        self.encoded: set[int] = set()

    def receive(self, messages: Sequence[tuple[int, EncodeRequest | AbortRequest]]) -> None:
        for _, message in messages:
            if isinstance(message, AbortRequest):
                self.waiting.pop(message.id, None)
            else:
                self.waiting[message.id] = message

    def encode(self, lost: set[int]) -> EngineInbound:
        """Encodes all images of the oldest request, or finds that one is lost."""
        asked = self.waiting.pop(next(iter(self.waiting)))
        ids = {span.item_id for span in asked.spans}
        if ids & lost:
            return abort(asked.id, reason="media_lost", attempt=asked.attempt)
        self.encoded |= ids
        return ImagesEncoded(id=asked.id, attempt=asked.attempt, item_ids=tuple(ids))


class World:
    """Every public method but ``run`` is a move of one process. Returns False if it had nothing to do."""

    def __init__(self) -> None:
        self.phase = ServerPhase(phase="ready", ready=True, visual_epochs=(0,))
        self.dead: set[str] = set()
        self.known, self.lost = dict[int, LeasedItem](), set[int]()
        """Pictures in the arena; ids of images that are not any more."""
        self.num_leased = 0
        self.cache_runs = asyncio.Event()
        self.encoder = Encoder()
        self.to_http: list[TokenReply | ServerPhase] = []
        self.to_router: list[EngineInbound] = []
        link = SimpleNamespace(send=self.to_router.append)
        self.dispatcher = Dispatcher(0, link, cast(Any, Samples()), abort_timeout_s=5)
        self.dispatcher.on_phase(self.phase)
        for part in ("cache", "engine", "visual"):
            self._start(part)
        self.answers = [array("q") for _ in PICTURES]
        self.requests = [self._request(number) for number in range(len(PICTURES))]

    def _request(self, number: int) -> GenerateRequest:
        prompt, spans = list(range(10, 16 + 9 * number)), list[MediaSpan]()
        for index, picture in enumerate(PICTURES[number]):
            (run,) = runs_of(index, self._leased(picture))
            spans.append(run.span(len(prompt)))
            prompt += [*array("q", run.virtual_ids()), 30 + number]
        return request(f"r{number}-0", [*prompt, 7], max_tokens=MAX_TOKENS, spans=tuple(spans))

    def _leased(self, picture: int) -> LeasedItem:
        if picture not in self.known:
            self.num_leased += 1
            handle = Handle(1, 0, ROWS)
            record = MediaRecord(self.num_leased, FIRST_VIRTUAL_TOKEN + picture * ROWS, "data", handle, handle)
            self.known[picture] = LeasedItem(record, EXPANSION)
        item = self.known[picture]
        if item.record.item_id in self.encoder.encoded:
            record = MediaRecord(item.record.item_id, item.record.token_start, "hit", None, item.record.embed)
            return LeasedItem(record, EXPANSION)
        return item

    @asynccontextmanager
    async def _hold(self, lease_id: str, pictures: Sequence[int]) -> AsyncIterator[list[LeasedItem]]:
        await self.cache_runs.wait()
        yield [self._leased(picture) for picture in pictures]

    def _choice(self, number: int) -> Choice:
        parts: dict[str, Any] = {
            "call": None,
            "alloc_path": SimpleNamespace(leases=SimpleNamespace(hold=self._hold)),
            "items": PICTURES[number],
            "request": self.requests[number],
            "text": SimpleNamespace(push=lambda reply: reply),
            "deltas": SimpleNamespace(push=lambda reply: self.answers[number].extend(reply.token_ids)),
            "latencies": SimpleNamespace(record=lambda reply: None),
            "dispatcher": self.dispatcher,
            "metrics": Samples(),
        }
        return Choice(**parts)

    # Moves of processes

    def step(self) -> bool:
        """The router reads its messages, and the ranks compute a step."""
        if "engine" in self.dead:
            return False
        scheduler, messages = self.engine.scheduler, self.to_router[:]
        self.to_router.clear()
        for message in messages:
            scheduler.receive(message)
        self.engine.rank.lost_items = self.lost
        self.engine.plan()
        has_plan = bool(self.engine.in_flight)
        self.to_http += [reply for _, reply in scheduler.take_starts()]
        if has_plan:
            self.engine.apply()
        self.to_http += [reply for _, reply in scheduler.take_replies()]
        self.encoder.receive(scheduler.take_encoder_messages())
        return has_plan or bool(messages)

    def encode(self) -> bool:
        if "visual" in self.dead or not self.encoder.waiting:
            return False
        self.to_router.append(self.encoder.encode(self.lost))
        return True

    def read(self, limit: int = 1000) -> bool:
        """The HTTP worker reads its messages. Its other tasks do not run in between."""
        messages, self.to_http[:limit] = self.to_http[:limit], []
        for message in messages:
            if isinstance(message, ServerPhase):
                self.dispatcher.on_phase(message)
            else:
                self.dispatcher.deliver(message)
        return bool(messages)

    def read_one(self) -> bool:
        return self.read(1)

    def kill(self, part: str) -> None:
        self.dead.add(part)
        if part == "engine":
            self.to_router.clear()
        elif part == "visual":
            self.encoder.waiting.clear()
        else:
            self.cache_runs.clear()
            self.lost.update(item.record.item_id for item in self.known.values())
            self.known.clear()

    def restart(self, part: str) -> None:
        """The part is ready again, if it was dead."""
        if part not in self.dead:
            return
        self.dead.remove(part)
        self._start(part)
        old = self.phase
        self.phase = ServerPhase(
            phase="ready",
            ready=True,
            engine_epoch=old.engine_epoch + (part == "engine"),
            visual_epochs=(old.visual_epochs[0] + (part == "visual"),),
            cache_epoch=old.cache_epoch + (part == "cache"),
        )
        self.to_http.append(self.phase)

    def _start(self, part: str) -> None:
        if part == "engine":
            self.engine = Engine(max_num_batched_tokens=32, max_model_len=CONTEXT)
            self.engine.encoders = cast(Any, self.encoder)
        elif part == "cache":
            self.cache_runs.set()

    # All together

    async def run(self, moves: Sequence[str]) -> None:
        """Asks everything at once, makes the moves, then starts what is dead and lets all work until nothing is left.
        Raises TimeoutError if requests are not answered then."""
        asked = [asyncio.create_task(self._choice(number).generate()) for number in range(len(PICTURES))]
        await _others()
        for move in moves:
            verb, _, part = move.partition(" ")
            getattr(self, verb)(*filter(None, [part]))
            if verb.startswith("read"):
                await _others()
        for part in sorted(self.dead):
            self.restart(part)
        while any([self.read(), self.encode(), self.step()]) or self.to_http:
            await _others()
        if not all(task.done() for task in asked):
            raise TimeoutError("nobody works any more, but requests wait")
        await asyncio.gather(*asked)

    def expected(self) -> list[list[int]]:
        prompts = [array("q", each.prompt_ids).tolist() for each in self.requests]
        return [
            generate_alone(prompt, each.sampling, CONTEXT)[0]
            for prompt, each in zip(prompts, self.requests, strict=True)
        ]


async def _others() -> None:
    """The other tasks run until each of them waits for a message."""
    for _ in range(30):
        await asyncio.sleep(0)


WORK = ["step", "step", "step", "encode", "read", "read_one"]
PARTS = st.permutations(["engine", "visual", "cache"])


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """Moves in which each part dies at most once, and starts again at some time or at the end."""
    moves = draw(st.lists(st.sampled_from(WORK), max_size=40))
    for part in draw(PARTS)[: draw(st.integers(1, 3))]:
        died = draw(st.integers(0, len(moves)))
        moves.insert(died, f"kill {part}")
        if draw(st.booleans()):
            moves.insert(draw(st.integers(died + 1, len(moves))), f"restart {part}")
    return moves


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
@example(["kill cache", "kill engine", "restart cache", "restart engine"])
@example(["step", "kill cache", "kill visual", "restart cache", "restart visual"])
def test_every_request_is_answered_as_if_no_process_had_died(moves: list[str]) -> None:
    async def scenario() -> World:
        world = World()
        await world.run(moves)
        return world

    world = asyncio.run(scenario())
    assert [answer.tolist() for answer in world.answers] == world.expected()
    assert world.dispatcher.num_live == 0
