"""Pictures that encoders on other machines encode: their rows, and every way in which an encoder can fail."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.checkpoint.load import load
from mmserve.config.node_options import Address
from mmserve.config.resolved.facts import encoder_facts_of
from mmserve.ipc.links import cluster_key
from mmserve.messages.media import Processing
from mmserve.messages.request import AbortRequest
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.interface import Views
from mmserve.runtime.errors import StartupError
from mmserve.visualserver import offload
from mmserve.visualserver.batches.encode import ComputeRows
from mmserve.visualserver.encoder import dialer
from mmserve.visualserver.encoder.dialer import Dialer, Job
from mmserve.visualserver.encoder.rows_cache import RowsCache
from mmserve.visualserver.encoder.worker import Worker
from mmserve.visualserver.remote.choice import Candidate, Pace
from mmserve.visualserver.remote.encoders import Encoders
from mmserve.visualserver.remote.frames import (
    GREETING,
    NONCE_NBYTES,
    SIGNATURE_NBYTES,
    Fail,
    Hello,
    Result,
    Session,
    digest,
)
from mmserve.visualserver.remote.streams import AsyncStream
from tests.fakes.http.ports import free_port
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.pictures.media import png
from tests.integration.visualserver.stack import TIMEOUT_S, FakeTower, Stack, _real_tower, play

Take = Callable[[Job], None]


class Encoder:
    """An encoder in this process, with ``take`` in place of a tower's work."""

    def __init__(self, stack: Stack, take: Take, *, secret: bytes | None = None, **changes: Any) -> None:
        config = stack.process.deployment.config
        assert config.encoders is not None
        assert config.cluster_key_file is not None
        self.refused: queue.SimpleQueue[StartupError] = queue.SimpleQueue()
        self.taken: list[Job] = []
        self._took = threading.Condition()
        self._joined = threading.Event()
        self.num_joins = 0
        self._take = take
        hello = {
            "name": str(id(self)),
            "credit": 1 << 20,
            "slots": 4,
            "facts": encoder_facts_of(stack.process.deployment),
        }
        self.dialer = Dialer(
            Address("127.0.0.1", int(config.encoders.rpartition(":")[2])),
            secret or cluster_key.read(Path(config.cluster_key_file)).encoders,
            Hello(**(hello | changes)),
            2.0,
            self._note,
            self._on_welcome,
            self.refused.put,
        )

    def _note(self, job: Job) -> None:
        with self._took:
            self.taken.append(job)
            self._took.notify_all()
        self._take(job)

    def _on_welcome(self, visual_servers: int) -> None:
        self.num_joins += 1
        self._joined.set()

    async def joined(self) -> None:
        assert await asyncio.to_thread(self._joined.wait, TIMEOUT_S)

    async def took(self, count: int) -> None:
        assert await asyncio.to_thread(self._has_taken, count)

    def _has_taken(self, count: int) -> bool:
        with self._took:
            return self._took.wait_for(lambda: len(self.taken) >= count, TIMEOUT_S)


@contextmanager
def encoding(stack: Stack, take: Take, **changes: Any) -> Iterator[Encoder]:
    encoder = Encoder(stack, take, **changes)
    try:
        yield encoder
    finally:
        encoder.dialer.close()


def computing(stack: Stack, tower: ComputeRows, *, whole: bool = False) -> Take:
    """Decodes and encodes as the process ``mmserve encoder`` does. ``whole``: on a device that makes the views."""
    deployment = stack.process.deployment
    processors = image_processors_for(deployment.model)
    assert processors is not None

    def decode(_: int, data: memoryview, processing: Processing) -> Views:
        return processors.of(processing).views(data, whole=whole)

    worker = Worker(decode, tower, torch.float32, RowsCache(0), 1)
    return lambda job: worker.encode([job])


def answering(rows: bytes, **changes: Any) -> Take:
    """Answers everything with these rows."""

    def take(job: Job) -> None:
        fields = {"job": job.message.job, "nbytes": len(rows), "digest": digest(rows), "here_s": 0.0, "compute_s": 0.0}
        job.answer(Result(**(fields | changes)), memoryview(rows))

    return take


@pytest.fixture(autouse=True)
def all_go_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every picture goes to the encoder with the least name, whatever the seconds say."""

    def least(key: bytes, nbytes: int, candidates: Sequence[Candidate], here: Pace, ahead: int) -> Candidate | None:
        return min(candidates, key=lambda candidate: candidate.name, default=None)

    monkeypatch.setattr(offload, "choose", least)
    monkeypatch.setattr(dialer, "_RETRY_S", 0.02)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    cluster_key.make_if_missing(tmp_path / "key")
    return {"encoders": f"127.0.0.1:{free_port()}", "cluster_key_file": str(tmp_path / "key")}


def test_rows_equal_those_of_this_machine(tmp_path: Path, options: dict[str, str]) -> None:
    """Bit for bit. The port is that of --encoders."""
    pictures = [png(n, 60 + 20 * n, 50) for n in range(3)]

    async def scenario(stack: Stack) -> None:
        here = stack.send("here", *pictures)
        assert await stack.received(1) == {"here": here}
        device = computing(stack, _real_tower(stack.process, whole=True), whole=True)
        with encoding(stack, device) as encoder:
            await encoder.joined()
            there = stack.send("there", *(picture + b"another key" for picture in pictures))
            assert await stack.received(1) == {"there": there}
        assert len(encoder.taken) == 3
        for index in range(3):
            assert torch.equal(stack.rows(there, index), stack.rows(here, index))

    play(tmp_path, scenario, model=load(make_llava(tmp_path / "model")), **options)


def test_an_error_in_one_connection_ends_no_other(
    tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    admit, tried = Encoders._admit, list[str]()

    async def admit_later(encoders: Encoders, stream: AsyncStream) -> Session:
        tried.append("")
        if len(tried) == 2:
            raise ValueError("what nobody has thought of")
        return await admit(encoders, stream)

    monkeypatch.setattr(Encoders, "_admit", admit_later)

    async def scenario(stack: Stack) -> None:
        with (
            encoding(stack, computing(stack, FakeTower()), name="a") as first,
            encoding(stack, computing(stack, FakeTower()), name="b") as second,
        ):
            await first.joined()
            await second.joined()
            request = stack.send("r", png(1))
            assert await stack.received(1) == {"r": request}
            assert (len(tried), first.num_joins, second.num_joins) == (3, 1, 1)

    play(tmp_path, scenario, **options)


@pytest.mark.parametrize("seconds", ["before", "after"])
def test_a_dead_encoders_pictures_go_to_another_one_or_are_encoded_here(
    tmp_path: Path, options: dict[str, str], seconds: str
) -> None:
    async def scenario(stack: Stack) -> None:
        with ExitStack() as encoders:
            dying = encoders.enter_context(encoding(stack, lambda job: None, name="a"))
            await dying.joined()
            other = None
            if seconds == "after":
                other = encoders.enter_context(encoding(stack, computing(stack, FakeTower()), name="b"))
                await other.joined()
            request = stack.send("r", png(1), png(2))
            await dying.took(2)
            dying.dialer.close()
            assert await stack.received(1) == {"r": request}
            assert sum(stack.tower.batches) == (2 if other is None else 0)
            assert other is None or len(other.taken) == 2
            assert bool(stack.rows(request).isfinite().all())

    play(tmp_path, scenario, **options)


@pytest.mark.parametrize(
    "take",
    [
        answering(b"x" * 64),  # of another length
        answering(b"\0" * 128, digest=b"x" * 32),  # changed on the way
        answering(b"", nbytes=1 << 40),  # endless
        lambda job: job.answer(Fail(job=job.message.job, reason="no"), memoryview(b"")),
    ],
)
def test_rows_that_cannot_be_right_are_computed_here(tmp_path: Path, options: dict[str, str], take: Take) -> None:
    async def scenario(stack: Stack) -> None:
        with encoding(stack, take) as encoder:
            await encoder.joined()
            request = stack.send("r", png(1))
            assert await stack.received(1) == {"r": request}
        assert request.spans[0].embed.nbytes == 128
        assert len(encoder.taken) == 1
        assert stack.tower.batches == [1]

    play(tmp_path, scenario, **options)


def test_rows_for_an_extent_that_was_freed_are_dropped_and_the_link_goes_on(
    tmp_path: Path, options: dict[str, str]
) -> None:
    async def scenario(stack: Stack) -> None:
        held: list[Job] = []
        with encoding(stack, held.append) as encoder:
            await encoder.joined()
            request = stack.send("freed", png(1))
            await encoder.took(1)
            stack.arena.erase(request.spans[0].embed)
            answering(b"x" * 128)(held[0])
            answers = await stack.received(1)
            assert isinstance(answers["freed"], AbortRequest)
            assert answers["freed"].reason == "media_lost"
            following = stack.send("following", png(2))
            await encoder.took(2)
            answering(b"\0" * 128)(held[1])
            assert await stack.received(1) == {"following": following}
            assert stack.arena.readable(following.spans[0].embed) == bytes(128)

    play(tmp_path, scenario, **options)


def test_no_more_pictures_are_sent_than_the_encoder_takes(tmp_path: Path, options: dict[str, str]) -> None:
    async def scenario(stack: Stack) -> None:
        with encoding(stack, lambda job: None, slots=2) as encoder:
            await encoder.joined()
            request = stack.send("r", *(png(n) for n in range(5)))
            await encoder.took(2)
            await asyncio.wait_for(stack.encoding(), TIMEOUT_S)
            for job in encoder.taken[:2]:
                answering(b"\0" * 128)(job)
            assert await stack.received(1) == {"r": request}
            assert (len(encoder.taken), sum(stack.tower.batches)) == (2, 3)
            assert encoder.num_joins == 1, "it ends the connection if it gets more than it takes"

    play(tmp_path, scenario, **options)


def test_an_encoder_that_differs_is_refused_by_name(tmp_path: Path, options: dict[str, str]) -> None:
    async def scenario(stack: Stack) -> None:
        facts = encoder_facts_of(stack.process.deployment) | {"--dtype": "float16"}
        with encoding(stack, lambda job: None, facts=facts) as encoder:
            error = await asyncio.to_thread(encoder.refused.get, timeout=TIMEOUT_S)
            assert "this encoder differs from the server: --dtype is float16, not float32" in str(error)

    play(tmp_path, scenario, **options)


def test_without_the_key_nobody_takes_part(tmp_path: Path, options: dict[str, str]) -> None:
    """Of one who checks nothing himself, and sends the greeting and any proof."""

    async def scenario(stack: Stack) -> None:
        await stack.abort()  # it serves
        reader, writer = await asyncio.open_connection("127.0.0.1", int(options["encoders"].rpartition(":")[2]))
        writer.write(GREETING + bytes(NONCE_NBYTES))
        await reader.readexactly(NONCE_NBYTES + SIGNATURE_NBYTES)
        writer.write(bytes(SIGNATURE_NBYTES))
        assert await reader.read() == b""
        writer.close()
        request = stack.send("r", png(1))
        assert await stack.received(1) == {"r": request}

    play(tmp_path, scenario, **options)


def test_an_encoder_knows_a_server_without_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hello = Hello(name="a", credit=1, slots=1, facts={})
        address = Address(*server.getsockname())
        dialled = Dialer(address, b"secret", hello, 2.0, lambda job: None, lambda _: None, lambda error: None)
        connection, _ = server.accept()
        with connection:
            connection.recv(len(GREETING) + NONCE_NBYTES, socket.MSG_WAITALL)
            connection.sendall(bytes(NONCE_NBYTES + SIGNATURE_NBYTES))
            assert connection.recv(1) == b"", "no proof of its own, which could be tried elsewhere"
        dialled.close()
