"""The scheduler with real ranks and drafts: every answer is the one that is computed one token at a time.

Models with random weights soon repeat themselves, so that many drafts are right and many are not.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mmserve.messages.request import GenerateRequest
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.model_backend.worker.step_splitting import StepError
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.engine import BLOCK_TOKENS, Engine, make_runner
from tests.fakes.grammars import JSON
from tests.fakes.ranks_in_threads import RanksInThreads
from tests.unit.router.builders import request

CONTEXT = 192
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.3, "seed": 1},
    {"temperature": 0.3, "seed": 2, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.02},
    {"temperature": 0.1, "seed": 3, "frequency_penalty": 0.02, "presence_penalty": 0.1, "logprobs": 0},
    {"temperature": 0.0, "min_tokens": 30, "stop_token_ids": (5, 6, 7, 8, 9, 10, 11, 12)},
    {"temperature": 0.0, "bad_words": ((20,), (21, 22), (23, 24, 25))},
    {"temperature": 0.2, "seed": 4, "logit_bias": {30: 2.0, 31: 2.0}},
    {"temperature": 0.8, "seed": 5, "grammar": JSON, "eos_token_ids": (EOS,)},
    {"temperature": 0.8, "seed": 6, "grammar": JSON, "eos_token_ids": (EOS,), "logprobs": 1},
]
Answers = dict[str, tuple[list[int], list[bytes], str | None]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)
    torch.set_num_threads(threads)


def jobs() -> list[GenerateRequest]:
    """Prompts that repeat themselves, with all kinds of sampling. A stop token keeps the admission estimate from
    knowing the length."""
    draw = random.Random(3)
    prefix = [draw.randrange(4, VOCAB) for _ in range(20)]
    found = []
    for number, sampling in enumerate(SAMPLING):
        message = request(
            str(number), [*prefix[: 10 + number % 3 * 5], *prefix[:9]], max_tokens=70, stop_ids=(VOCAB - 1,)
        )
        found.append(msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, **sampling)))
    return found


def serve(
    engine: Engine, requests: list[GenerateRequest], *, drafts: bool, num_blocks: int = 200, chunk: int = 256
) -> tuple[Answers, Counter[str]]:
    """All requests at once, with steps that take the same time whatever they compute. Also the sums of metrics."""
    metrics: Counter[str] = Counter()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=chunk, max_model_len=CONTEXT, ngram_drafts=drafts),
        num_blocks=num_blocks,
        block_tokens=engine.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: metrics.update({name: int(value)}),
    )
    for _ in range(300):
        scheduler._admission.kv_demand.output_lengths.observe(1)
    for message in requests:
        scheduler.receive(message)
    answers: Answers = {message.id: ([], [], None) for message in requests}
    while plan := scheduler.schedule():
        result = engine.step(plan)
        metrics["steps"] += 1
        scheduler.apply(plan, msgspec.structs.replace(result, forward_s=0.01))
        for _, reply in scheduler.take_replies():
            tokens, logprobs, _ = answers[reply.id]
            answers[reply.id] = [*tokens, *reply.token_ids], [*logprobs, *reply.logprobs], reply.finish
    assert scheduler.kv.num_used == 0
    return answers, metrics


@pytest.fixture(scope="module")
def runner(directory: Path) -> ModelRunner:
    return make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS)


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> Answers:
    found: Answers = {}
    for message in jobs():
        found |= serve(runner, [message], drafts=False)[0]
    return found


@pytest.mark.parametrize("number", range(len(SAMPLING)))
def test_each_answer_is_the_same_with_drafts(runner: ModelRunner, alone: Answers, number: int) -> None:
    answers, _ = serve(runner, [jobs()[number]], drafts=True)
    assert answers == {str(number): alone[str(number)]}


@pytest.mark.parametrize(("num_blocks", "chunk", "preempts"), [(200, 256, False), (200, 16, False), (20, 64, True)])
def test_answers_do_not_depend_on_what_else_runs(
    directory: Path, alone: Answers, num_blocks: int, chunk: int, preempts: bool
) -> None:
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=num_blocks * BLOCK_TOKENS)
    answers, metrics = serve(runner, jobs(), drafts=True, num_blocks=num_blocks, chunk=chunk)
    assert answers == alone
    assert (metrics["num_preemptions"] > 0) == preempts
    assert 0 < metrics["accepted_draft_tokens"] < metrics["draft_tokens"]


def test_answers_are_the_same_on_two_ranks(directory: Path) -> None:
    with closing(RanksInThreads(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS)) as ranks:
        expected, _ = serve(ranks, jobs(), drafts=False)
        answers, metrics = serve(ranks, jobs(), drafts=True)
    assert answers == expected
    assert metrics["accepted_draft_tokens"]


def test_an_answer_that_repeats_itself_takes_few_steps(runner: ModelRunner) -> None:
    message = msgspec.structs.replace(jobs()[0], sampling=msgspec.structs.replace(jobs()[0].sampling, max_tokens=150))
    message = msgspec.structs.replace(
        message, sampling=msgspec.structs.replace(message.sampling, allowed_token_ids=(40,))
    )
    answers, metrics = serve(runner, [message], drafts=True)
    assert answers["0"][0] == [40] * 150
    assert metrics["steps"] < 25


@pytest.mark.parametrize("error", [StepError("broken"), StepError("no memory", out_of_memory=True)])
def test_a_step_that_fails_with_drafts_is_computed_without(
    runner: ModelRunner, alone: Answers, error: StepError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails after sampling, when penalties and grammars have seen the drafted tokens."""
    sample = runner._sampling.sample
    num_failed = 0

    def failing(slots: Any, sequences: Any, drafts: Any, logits: Any, in_flight: Any) -> StepError | None:
        nonlocal num_failed
        if not drafts:
            return sample(slots, sequences, drafts, logits, in_flight)
        num_failed += 1
        with monkeypatch.context() as patched:
            patched.setattr(
                "mmserve.model_backend.worker.token_sampling.ModelLogprobs.compute",
                lambda *_: (_ for _ in ()).throw(RuntimeError("broken")),
            )
            assert sample(slots, sequences, drafts, logits, in_flight) is not None
        return error

    monkeypatch.setattr(runner._sampling, "sample", failing)
    answers, _ = serve(runner, jobs(), drafts=True)
    assert num_failed
    assert answers == alone
