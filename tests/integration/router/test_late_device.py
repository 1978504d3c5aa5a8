"""The scheduler and ranks whose devices compute late, with random requests, arrivals, aborts and order of results.

Every text is that of steps one after the other on a device that computes at once. A stop string ends a sequence as an
abort does: its text is checked by ``tests/unit/router/scheduler/test_overlap.py``.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan
from mmserve.model_backend.worker.model_runner import InFlight, ModelRunner
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.devices.late_device import LateDevice, LatePlatform
from tests.fakes.devices.late_ranks import FAILING, LateRanks, late_ranks
from tests.fakes.models.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, make_runner
from tests.fakes.ranks.grammars import JSON
from tests.fakes.ranks.plans_ahead import plans, run
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
PLANNED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "drawn": {"temperature": 1.0, "seed": 4, "top_p": 0.8, "min_p": 0.01},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3},
    "grammar": {"temperature": 0.0, "grammar": JSON},
}
FREE = ("greedy", "logprobs", "drawn")
"""Kinds of sequences whose next step needs nothing from the host."""
SIZES: dict[str, Any] = {"max_model_len": 128, "kv_tokens": NUM_BLOCKS * BLOCK_TOKENS}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


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


def compare(directory: Path, ahead: Any, seed: int) -> None:
    """``ahead``: a runner, which gets plans before the results of earlier ones."""
    rng = random.Random(seed)
    made = requests(rng)
    plain = Server(make_runner(directory, **SIZES), ahead=False)
    for message in made:
        plain.scheduler.receive(message)
    plain.run()
    aborted = {message.id for message in made if rng.random() < 0.2}
    server = Server(ahead, ahead=True)
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


@pytest.mark.parametrize("seed", range(3))
def test_texts_are_those_of_one_step_after_the_other(directory: Path, seed: int) -> None:
    with LateDevice() as device:
        runner = make_runner(directory, platform=LatePlatform(device), **SIZES)
        device.loading = False
        compare(directory, runner, seed)


@pytest.fixture(scope="module")
def ranks(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LateRanks]:
    with late_ranks(directory, tmp_path_factory.mktemp("ranks"), **SIZES) as made:
        yield made


def test_texts_of_two_ranks(directory: Path, ranks: LateRanks) -> None:
    compare(directory, ranks, seed=3)


@pytest.mark.parametrize("kind", PLANNED)
def test_launches_of_two_ranks_wait_for_no_device(directory: Path, ranks: LateRanks, kind: str) -> None:
    made = plans(3, SamplingParams(max_tokens=100, **PLANNED[kind]))
    while ranks.step(made[0]).deferred:
        pass  # its grammar is compiled
    ranks.waits.clear()
    found, expected = run(ranks, made, depth=2), run(make_runner(directory, **SIZES), made, depth=1)  # type: ignore[arg-type]
    assert [result.failures for result in found] == [()] * 4
    if kind != "grammar":  # the first step waits for the compiler there
        assert [result.tokens for result in found] == [result.tokens for result in expected]
    assert [len(result.logprobs) for result in found] == [2 * (kind == "logprobs")] * 4
    assert not any(ranks.waits) or kind not in FREE, "what the next step needs of the host alone is waited for"


def test_rank_0_that_cannot_sample_fails_the_sequence_at_fault(directory: Path, ranks: LateRanks) -> None:
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    made = plans(2, sampling)
    expected = run(make_runner(directory, **SIZES), made, depth=1)
    bad = msgspec.structs.replace(made[0].new[1], sampling=msgspec.structs.replace(sampling, seed=FAILING))
    first, *others = [msgspec.structs.replace(made[0], new=(made[0].new[0], bad)), *made[1:]]
    alone = [msgspec.structs.replace(plan, steps=plan.steps[:1]) for plan in others]
    found = run(ranks, [first, *alone], depth=2)  # type: ignore[arg-type]
    assert [(failure.slot, failure.message) for failure in found[0].failures] == [(1, "internal error: as it happens")]
    assert [dict(result.tokens)[0] for result in found] == [dict(result.tokens)[0] for result in expected]


def test_a_rank_that_ends_ends_the_other(directory: Path, tmp_path: Path) -> None:
    with late_ranks(directory, tmp_path, **SIZES) as ranks:
        driver = Driver(ranks)
        driver.add(0, [5, 6, 7])
        driver.step()
        ranks.processes[1].kill()
        ranks.processes[1].join()  # or else it could answer once more, and the other would wait for a plan
        with pytest.raises((EOFError, ConnectionError)):
            driver.run(40)
        ranks.processes[0].join(30)
        assert ranks.processes[0].exitcode == 1
