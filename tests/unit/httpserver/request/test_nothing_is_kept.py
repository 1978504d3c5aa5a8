"""A request that has ended is not in memory any more, however it ended, without help of the garbage collector.

A cycle of references keeps a request until a full collection, which a worker rarely runs: its objects are large in
bytes, not in number.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pybase64
import pytest

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.api.openai.chat.answer import ChatAnswer
from mmserve.httpserver.api.response import TaskResponse
from mmserve.httpserver.call import (
    AllocVersion,
    GenerateCall,
    LeasedItem,
    MediaItem,
    MediaRef,
    Prompt,
)
from mmserve.httpserver.conversation import MediaPart, Message, PromptInput, TextPart
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.grammars import GrammarChecks
from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.reservations import Reservations
from mmserve.httpserver.media import reader
from mmserve.httpserver.mm_cache.alloc_path import AllocPaths
from mmserve.httpserver.output.answer_format import AnswerFormat
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.output.parsing.formats import Format
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.request import task
from mmserve.httpserver.request.path import RequestPath
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTask, RequestTasks
from mmserve.ipc.arena import Arena
from mmserve.messages.cache import AllocItem
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, GenerateRequest
from mmserve.processors.image_files.picture import Header, header
from mmserve.runtime.errors import MmserveError
from mmserve.runtime.worker_threads import WorkerThreads
from tests.fakes.http.connection import Connection
from tests.fakes.http.http_services import StubPrompts, byte_tokenizer
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import BothAllocPaths
from tests.fakes.pictures.media import png
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.calls import generate_call

PICTURES = [png(seed) for seed in range(2)]
READY = ServerPhase(phase="ready", ready=True)
SECONDS = 20.0


class Body(bytearray):
    """A request's body that can be referred to weakly."""


class Engine:
    """Answers what a dispatcher sends. ``finish``: None says one token and goes on until it is aborted."""

    def __init__(self) -> None:
        self.finishes: list[str | None] = ["stop"]
        """Of each attempt; the last one is repeated."""
        self.dispatcher = Dispatcher(0, self, cast(Any, Samples()))
        self.dispatcher.on_phase(READY)
        self.submitted = asyncio.Event()

    def send(self, message: GenerateRequest | AbortRequest) -> None:
        self._reply(message, "abort" if isinstance(message, AbortRequest) else self._next_finish())
        self.submitted.set()

    def _next_finish(self) -> str | None:
        return self.finishes.pop(0) if len(self.finishes) > 1 else self.finishes[0]

    def _reply(self, to: GenerateRequest | AbortRequest, finish: Any) -> None:
        reply = TokenReply(id=to.id, attempt=to.attempt, token_ids=(ord("x"),), finish=finish)
        asyncio.get_running_loop().call_soon(self.dispatcher.deliver, reply)


class Prompts(StubPrompts):
    """``building`` is set when a prompt is built, which then waits for ``go_on``, and raises ``error`` if it is set."""

    def __init__(self) -> None:
        self.building, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.error: Exception | None = None

    def build(self, prompt: PromptInput, media: Sequence[MediaRef], leased: Sequence[LeasedItem]) -> Prompt:
        self.building.set()
        assert self.go_on.wait(SECONDS)
        if self.error is not None:
            raise self.error
        return super().build(prompt, media, leased)


class World:
    """A worker's request path with real readers, leases and dispatcher, over a table and an engine without sockets."""

    def __init__(
        self, paths: BothAllocPaths, alloc_version: AllocVersion, tracker: Tracker, engine: Engine | None = None
    ) -> None:
        self.paths, self._tracker = paths, tracker
        self.samples = cast(Any, Samples())
        self.engine, self.prompts = engine or Engine(), Prompts()
        split = cast(Any, type("Split", (), {"fraction": 1.0 if alloc_version == "v2" else 0.0}))
        path = RequestPath(
            worker=0,
            max_model_len=1 << 20,
            max_fetched_nbytes=1 << 20,
            grammars=GrammarChecks([]),
            alloc_paths=AllocPaths(paths.paths["v1"], paths.paths["v2"], split),
            prompts=self.prompts,
            prompt_threads=WorkerThreads("prompt", 1),
            dispatcher=self.engine.dispatcher,
            vocabulary=(vocabulary := Vocabulary(byte_tokenizer())),
            answer_format=AnswerFormat(Format(), vocabulary),
            eos_token_ids=(),
            metrics=self.samples,
        )
        self.tasks = RequestTasks(path.generate, self.samples)
        self.admission = AdmissionControl(8, self.samples)
        self.admission.phase = READY
        self.memory = Reservations("body", "--body-budget-mb", 1 << 24, self.samples, 1.0)
        self.reading, self.go_on_reading = threading.Event(), threading.Event()
        self.go_on_reading.set()
        self.connection = Connection()
        self.sent = asyncio.Event()
        self.num_choices = 2

    def header(self, content: bytes, max_pixels: int) -> Header:
        self.reading.set()
        assert self.go_on_reading.wait(SECONDS)
        return header(content, max_pixels)

    def start(
        self, *, text: str = "see", stream: bool = True, damaged: bool = False, **fields: Any
    ) -> asyncio.Task[None]:
        """A request with two images. The task ends with the response."""
        texts = [pybase64.b64encode(b"no picture" if damaged else data) for data in PICTURES]
        body = self._tracker.add(Body(b"".join(texts)))
        view, at, media = memoryview(body), 0, []
        for number, encoded in enumerate(texts):
            media.append(MediaRef("data:;base64,", f"messages[0].content[{number}]", view[at : at + len(encoded)]))
            at += len(encoded)
        message = Message("user", (TextPart(text), *(MediaPart(number) for number in range(len(media)))))
        call = generate_call(message, media=tuple(media), n=self.num_choices, stream=stream, **fields)
        resources = RequestResources(self.admission, self.memory, self.memory)
        response = TaskResponse(self.tasks.start(call, resources, "/chat"), ChatAnswer())
        return asyncio.create_task(self._serve(response))

    async def _serve(self, response: TaskResponse) -> None:
        with suppress(MmserveError):
            await response(self.connection.scope, self.connection.receive, self._send)

    async def _send(self, message: Any) -> None:
        self.sent.set()

    async def disconnect(self, serving: asyncio.Task[None]) -> None:
        self.connection.lose()
        await serving

    async def ended(self) -> None:
        """All tasks have ended, and the event loop has let go of them."""
        async with asyncio.timeout(SECONDS):
            while len(self.tasks):  # noqa: ASYNC110 - the tasks have no event for this
                await asyncio.sleep(0.001)
            for _ in range(3):
                await asyncio.sleep(0)


End = Callable[[World], Awaitable[None]]


async def answered(world: World) -> None:
    await world.start()


async def answered_at_once(world: World) -> None:
    await world.start(stream=False)


async def aborted_while_reading(world: World) -> None:
    world.go_on_reading.clear()
    serving = world.start()
    assert await asyncio.to_thread(world.reading.wait, SECONDS)
    await world.disconnect(serving)
    world.go_on_reading.set()


@asynccontextmanager
async def full_arena(world: World) -> AsyncIterator[Any]:
    client = world.paths.paths["v2"].leases._client  # type: ignore[attr-defined]
    client.alloc("filler", [AllocItem(b"filler", 1, world.paths.arena.nbytes - 256, 0)], wait_s=0)
    yield
    client.release("filler")


async def aborted_while_waiting_for_a_lease(world: World) -> None:
    async with full_arena(world):
        serving = world.start()
        while not world.paths.table.snapshot().num_waiting:  # noqa: ASYNC110 - the table has no event for this
            await asyncio.sleep(0.001)
        await world.disconnect(serving)
        await world.ended()


async def no_lease_in_time(world: World) -> None:
    async with full_arena(world):
        await world.start()
        await world.ended()


async def aborted_while_building_a_prompt(world: World) -> None:
    world.prompts.go_on.clear()
    serving = world.start(text="long" * 10_000)
    assert await asyncio.to_thread(world.prompts.building.wait, SECONDS)
    await world.disconnect(serving)
    world.prompts.go_on.set()


async def aborted_before_the_first_token(world: World) -> None:
    world.engine.finishes = [None]
    serving = world.start(stream=False)
    await world.engine.submitted.wait()
    await world.disconnect(serving)


async def aborted_while_streaming(world: World) -> None:
    world.engine.finishes = [None]
    serving = world.start()
    await world.sent.wait()
    await world.disconnect(serving)


async def aborted_at_the_start(world: World) -> None:
    await world.disconnect(world.start())


async def damaged_image(world: World) -> None:
    await world.start(damaged=True)


async def failed_by_a_bug(world: World) -> None:
    world.prompts.error = RuntimeError("a bug")
    await world.start()


async def failed_by_a_bug_in_a_thread(world: World) -> None:
    world.prompts.error = RuntimeError("a bug")
    await world.start(text="long" * 10_000)


async def failed_in_the_engine(world: World) -> None:
    world.engine.finishes = ["error"]
    await world.start()


async def failed_while_streaming(world: World) -> None:
    world.engine.finishes = [None]
    world.num_choices = 1
    serving = world.start()
    await world.sent.wait()
    request = TokenReply(id="request-0", finish="error")
    world.engine.dispatcher.deliver(request)
    await serving


async def answered_after_images_were_lost(world: World) -> None:
    world.engine.finishes = ["media_lost", "media_lost", "media_lost", "stop"]
    await world.start()


async def images_always_lost(world: World) -> None:
    world.engine.finishes = ["media_lost"]
    await world.start()


async def drained(world: World) -> None:
    world.engine.finishes = [None]
    serving = world.start()
    await world.sent.wait()
    await world.tasks.close()
    await serving


async def timed_out(world: World) -> None:
    world.engine.finishes = [None]
    serving = world.start(timeout_s=0.02, arrival_s=time.monotonic())
    await serving
    assert world.samples.total("requests_timed_out") == 1


ENDS: list[End] = [
    answered,
    answered_at_once,
    aborted_at_the_start,
    aborted_while_reading,
    aborted_while_waiting_for_a_lease,
    aborted_while_building_a_prompt,
    aborted_before_the_first_token,
    aborted_while_streaming,
    damaged_image,
    no_lease_in_time,
    failed_by_a_bug,
    failed_by_a_bug_in_a_thread,
    failed_in_the_engine,
    failed_while_streaming,
    answered_after_images_were_lost,
    images_always_lost,
    drained,
    timed_out,
]


class Tracker:
    """Weak references to what belongs to requests."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Any]] = []

    def add(self, made: Any) -> Any:
        self._made.append(weakref.ref(made))
        return made

    def watch(self, type_: Any, patch: pytest.MonkeyPatch) -> None:
        """Add every object of the type."""
        init = type_.__init__

        def init_and_add(made: Any, *args: Any, **fields: Any) -> None:
            init(made, *args, **fields)
            self.add(made)

        patch.setattr(type_, "__init__", init_and_add)

    def items(self) -> type[MediaItem]:
        """A type of images that adds each of them, copies with other fields included."""
        add = self.add

        class TrackedItem(MediaItem, frozen=True, weakref=True):
            def __post_init__(self) -> None:
                add(self)

        return TrackedItem

    def alive(self) -> list[str]:
        return [type(made).__name__ for one in self._made if (made := one()) is not None]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_chat_model(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 16)
    yield arena
    arena.close()


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    """Tracks requests while garbage is not collected."""
    found = Tracker()
    for type_ in (GenerateCall, RequestTask, RequestResources, DeltaStream, Detokenizer):
        found.watch(type_, monkeypatch)
    monkeypatch.setattr(reader, "MediaItem", found.items())
    # pytest keeps what is logged, and with it the frames of a traceback.
    monkeypatch.setattr(task.logger, "error", lambda *args, **fields: None)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize("alloc_version", ["v1", "v2"])
@pytest.mark.parametrize("end", ENDS, ids=[end.__name__ for end in ENDS])
def test_nothing_of_a_request_is_kept_when_it_has_ended(
    end: End,
    alloc_version: AllocVersion,
    deployment: Deployment,
    arena: Arena,
    tracker: Tracker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = BothAllocPaths(deployment, arena, timeout_s=0.05 if end is no_lease_in_time else SECONDS)

    async def scenario() -> None:
        world = World(paths, alloc_version, tracker)
        monkeypatch.setattr(reader, "header", world.header)
        await end(world)
        await world.ended()
        assert tracker.alive() == []
        assert world.memory.used_nbytes == 0

    paths.run(scenario)
    assert paths.is_clean()
