"""A router process between fake ranks (threads) and an HTTP worker, visual, metrics and health server (sockets)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.links.channel import Receiver, Sender
from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import LockstepSender
from mmserve.messages.reply import HttpInbound, TokenReply
from mmserve.messages.request import EngineInbound, VisualInbound
from mmserve.messages.step import RankInbound, StepPlan
from mmserve.monitoring.health.heartbeat import Beat, read_beat
from tests.fakes.pictures.cache import until
from tests.fakes.pictures.media import vision_spec
from tests.fakes.ranks.rank import STOP_PLAN, FakeRank, serve_rank

NUM_WORKERS, NUM_RANKS = 2, 2
_ROOT = Path(__file__).parents[3]


def _deployment(run_dir: Path, *, overlap: bool, options: dict[str, Any]) -> Deployment:
    text = TextSpec(
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerSpec(),),
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=64,
        max_position=512,
        rms_eps=1e-5,
    )
    return Deployment(
        config=Config(
            max_num_seqs=4,
            max_num_batched_tokens=64,
            http_workers=NUM_WORKERS,
            tp=NUM_RANKS,
            overlap_scheduling=overlap,
            **options,
        ),
        model=ModelSpec(family="llava", path=str(run_dir), text=text, vision=vision_spec()),
        served_name="fake",
        device="cpu",
        dtype="float32",
        max_model_len=512,
        kv_tokens=None,
        arena_nbytes=0,
        run_dir=str(run_dir),
        hash_seed=0,
        url="http://localhost:0",
        version="0",
    )


class RouterPeers:
    """The processes around the router: fake ranks with ``num_blocks`` KV blocks each, HTTP workers, metrics, health.
    ``options``: of the server."""

    def __init__(self, run_dir: Path, stack: ExitStack, num_blocks: int, *, overlap: bool, **options: Any) -> None:
        endpoints = Endpoints(run_dir)
        self.deployment = _deployment(run_dir, overlap=overlap, options=options)
        self.fakes = [FakeRank(num_blocks, num_slots=4, max_tokens=64) for _ in range(NUM_RANKS)]
        self.router: Sender[EngineInbound] = stack.enter_context(closing(Sender(endpoints.router, EngineInbound)))
        self.workers: list[Receiver[HttpInbound]] = [
            stack.enter_context(closing(Receiver(endpoints.http(worker), HttpInbound))) for worker in range(NUM_WORKERS)
        ]
        self.visual: Receiver[VisualInbound] = stack.enter_context(
            closing(Receiver(endpoints.visual(0), VisualInbound))
        )
        self.endpoints = endpoints
        self._heartbeat = endpoints.heartbeat("router-0")
        for rank, fake in enumerate(self.fakes):
            thread = threading.Thread(target=serve_rank, args=(endpoints, rank, fake))
            thread.start()
            stack.callback(_end_rank, endpoints, rank, thread)
        self.process = _start(run_dir, self.deployment, stack)
        self.ready: dict[str, Any] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def next_beat(self) -> Beat:
        """Wait for the router's next heartbeat."""
        last = read_beat(self._heartbeat)
        until(lambda: (beat := read_beat(self._heartbeat)) is not None and beat != last)
        beat = read_beat(self._heartbeat)
        assert beat is not None
        assert beat.pid == self.process.pid
        return beat

    def replies_until_finish(self, worker: int, count: int) -> list[TokenReply]:
        """Receives replies of the worker until ``count`` of them were terminal."""
        replies: list[TokenReply] = []
        while sum(reply.finish is not None for reply in replies) < count:
            reply = self.workers[worker].receive()
            assert isinstance(reply, TokenReply)
            replies.append(reply)
        return replies

    def stop(self) -> tuple[str, int]:
        """Sends SIGTERM; returns the last line of output and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._line().strip(), self.process.wait(timeout=20)


def _end_rank(endpoints: Endpoints, rank: int, thread: threading.Thread) -> None:
    with closing(LockstepSender[RankInbound](endpoints.rank(rank), StepPlan)) as sender:
        sender.send(STOP_PLAN)
        thread.join(timeout=20)
    assert not thread.is_alive()


def _start(run_dir: Path, deployment: Deployment, stack: ExitStack) -> subprocess.Popen[str]:
    file = run_dir / "deployment"
    file.write_bytes(Codec[Deployment](Deployment).encode(deployment))
    command = [sys.executable, "-m", "tests.integration.router.router_main", str(file)]
    process = stack.enter_context(subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    return process


@pytest.fixture
def overlap() -> bool:
    """Whether the router overlaps scheduling with computing; tests parametrize it."""
    return False


@pytest.fixture
def peers(tmp_path_factory: pytest.TempPathFactory, overlap: bool) -> Iterator[RouterPeers]:
    with ExitStack() as stack:
        yield RouterPeers(tmp_path_factory.mktemp("r"), stack, num_blocks=24, overlap=overlap)
