"""The scheduler and a rank whose device computes late, with random requests, arrivals, aborts and order of results:
every text is that of steps one after the other on a device that computes at once."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.messages.step import StepPlan
from mmserve.model_backend.worker.model_runner import InFlight, ModelRunner
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.engine import BLOCK_TOKENS, make_runner
from tests.fakes.grammars import JSON
from tests.fakes.late_device import LateDevice, LatePlatform
from tests.unit.router.builders import abort, request

NUM_BLOCKS, NUM_REQUESTS, LONGEST = 24, 9, 14
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 40, "min_p": 0.01},
    {"temperature": 1.0, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 1.0, "bad_words": tuple((a, b) for a in range(4, 260, 3) for b in range(4, 260, 5))},
    {"temperature": 1.0, "min_tokens": 5, "stop_token_ids": tuple(range(4, 260, 6))},
    {"temperature": 1.0, "stop_token_ids": tuple(range(4, 260, 6))},
    {"temperature": 0.0, "grammar": JSON, "stop_token_ids": (EOS,)},
    {"temperature": 0.0, "allowed_token_ids": (9,), "bad_words": ((9,),)},
)
"""The last one has no token that it may choose."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_llama(tmp_path_factory.mktemp("llama"))
    torch.set_num_threads(threads)


def requests(rng: random.Random) -> list[GenerateRequest]:
    """Half of them begin alike, so prefixes are shared."""
    prefix = [rng.randrange(4, VOCAB) for _ in range(40)]
    made = []
    for name in range(NUM_REQUESTS):
        own = [rng.randrange(4, VOCAB) for _ in range(rng.randrange(1, 30))]
        message = request(str(name), prefix[: rng.choice((0, 33))] + own)
        kind = rng.choice(KINDS) | {"seed": rng.getrandbits(40), "max_tokens": rng.randrange(1, LONGEST)}
        sampling = msgspec.structs.replace(message.sampling, **kind)
        made.append(msgspec.structs.replace(message, sampling=sampling))
    return made


class Server:
    """Scheduler and rank, with at most two plans in flight if ``ahead``."""

    def __init__(self, runner: ModelRunner, *, ahead: bool) -> None:
        self._runner, self._depth = runner, 2 if ahead else 1
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=5, max_num_batched_tokens=40, max_model_len=128),
            num_blocks=NUM_BLOCKS,
            block_tokens=runner.block_tokens,
            now=lambda: 0.0,
            record=lambda name, value: None,
        )
        self._in_flight: deque[tuple[StepPlan, InFlight]] = deque()
        self.most_in_flight = 0
        self.replies: defaultdict[str, list[TokenReply]] = defaultdict(list)

    def launch(self) -> bool:
        if len(self._in_flight) == self._depth or (plan := self.scheduler.schedule()) is None:
            return False
        self._in_flight.append((plan, self._runner.launch(plan)))
        self.most_in_flight = max(self.most_in_flight, len(self._in_flight))
        return True

    def collect(self) -> bool:
        if not self._in_flight:
            return False
        plan, launched = self._in_flight.popleft()
        self.scheduler.apply(plan, self._runner.collect(launched))
        for _, reply in self.scheduler.take_replies():
            self.replies[reply.id].append(reply)
        return True

    def run(self, choose: Callable[[], bool] = lambda: False) -> None:
        """Until idle. ``choose``: whether a result is awaited before the next plan is made."""
        while not self.scheduler.idle:
            if not ((choose() and self.collect()) or self.launch()):
                self.collect()

    def text(self, name: str) -> list[int]:
        return [token_id for reply in self.replies[name] for token_id in reply.token_ids]

    def finish(self, name: str) -> str | None:
        return self.replies[name][-1].finish


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_those_of_one_step_after_the_other(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    made, kv_tokens = requests(rng), NUM_BLOCKS * BLOCK_TOKENS
    plain = Server(make_runner(directory, max_model_len=128, kv_tokens=kv_tokens), ahead=False)
    for message in made:
        plain.scheduler.receive(message)
    plain.run()
    aborted = {message.id for message in made if rng.random() < 0.2}
    with LateDevice() as device:
        runner = make_runner(directory, platform=LatePlatform(device), max_model_len=128, kv_tokens=kv_tokens)
        device.loading = False
        server = Server(runner, ahead=True)
        for message in made:
            server.scheduler.receive(message)
            for _ in range(rng.randrange(4)):
                server.launch()
            for _ in range(rng.randrange(2)):
                server.collect()
            for name in [name for name in aborted if int(name) < int(message.id) and rng.random() < 0.3]:
                server.scheduler.receive(abort(name))
        server.run(lambda: rng.random() < 0.3)
    assert server.most_in_flight == 2
    for message in made:
        name, expected = message.id, plain.text(message.id)
        if name in aborted and server.finish(name) == "abort":
            assert server.text(name) == expected[: len(server.text(name))]
        else:
            assert (server.text(name), server.finish(name)) == (expected, plain.finish(name))
            assert len([each for reply in server.replies[name] for each in reply.logprobs]) == len(
                expected if message.sampling.logprobs is not None else ()
            )
    assert server.scheduler.kv.num_used == plain.scheduler.kv.num_used == 0
