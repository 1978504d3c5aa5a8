"""The scheduler with real ranks and drafts: every answer is the one that is computed one token at a time.

Models with random weights soon repeat themselves, so that many drafts of n-grams are right and many are not. As draft
models serve the model itself, which is right wherever only temperature and cuts decide, and another one.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.messages.request import GenerateRequest
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.model_backend.worker.step_splitting import StepError
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.models.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, Engine, make_runner
from tests.fakes.ranks.grammars import JSON
from tests.fakes.ranks.ranks_in_threads import RanksInThreads
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler
from tests.unit.router.builders import request

CONTEXT = 192
NGRAM, SAME, OTHER = DRAFTS = ("ngram", "same model", "other model")
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
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def with_draft_model(directory: Path, tmp_path_factory: pytest.TempPathFactory, drafts: str) -> dict[str, Path]:
    """For ``make_runner``."""
    if drafts == NGRAM:
        return {}
    other = {"seed": 1, "num_hidden_layers": 1, "head_dim": 16, "hidden_size": 32}
    return {"draft": directory if drafts == SAME else make_llama(tmp_path_factory.mktemp("draft"), **other)}


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
    engine: Engine,
    requests: list[GenerateRequest],
    *,
    drafts: str = "",
    num_blocks: int = 200,
    chunk: int = 256,
    draft_context: int = CONTEXT,
    max_num_seqs: int = 8,
) -> tuple[Answers, Counter[str]]:
    """All requests at once, with steps that take the same time whatever they compute. Also the sums of metrics."""
    metrics: Counter[str] = Counter()
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=chunk,
        max_model_len=CONTEXT,
        ngram_drafts=drafts == NGRAM,
        draft_context=draft_context if drafts in (SAME, OTHER) else 0,
    )
    scheduler = Scheduler(
        config,
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
        metrics["draft_rows"] += result.num_draft_rows
        draft_s = 0.0001 if result.proposals else 0.0
        scheduler.apply(plan, msgspec.structs.replace(result, forward_s=0.01 + draft_s, draft_s=draft_s))
        for _, reply in scheduler.take_replies():
            tokens, logprobs, _ = answers[reply.id]
            answers[reply.id] = [*tokens, *reply.token_ids], [*logprobs, *reply.logprobs], reply.finish
    assert scheduler.kv.num_used == 0
    return answers, metrics


@pytest.fixture(scope="module", params=DRAFTS)
def drafts(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def options(directory: Path, tmp_path_factory: pytest.TempPathFactory, drafts: str) -> dict[str, Path]:
    return with_draft_model(directory, tmp_path_factory, drafts)


@pytest.fixture(scope="module")
def runner(directory: Path, options: dict[str, Path]) -> ModelRunner:
    return make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, **options)


@pytest.fixture(scope="module")
def alone(directory: Path) -> Answers:
    plain = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS)
    found: Answers = {}
    for message in jobs():
        found |= serve(plain, [message])[0]
    return found


@pytest.mark.parametrize("number", range(len(SAMPLING)))
def test_each_answer_is_the_same_with_drafts(runner: ModelRunner, alone: Answers, drafts: str, number: int) -> None:
    answers, _ = serve(runner, [jobs()[number]], drafts=drafts)
    assert answers == {str(number): alone[str(number)]}


@pytest.mark.parametrize(("num_blocks", "chunk", "preempts"), [(200, 256, False), (200, 16, False), (20, 64, True)])
def test_answers_do_not_depend_on_what_else_runs(
    directory: Path, options: dict[str, Path], alone: Answers, drafts: str, num_blocks: int, chunk: int, preempts: bool
) -> None:
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=num_blocks * BLOCK_TOKENS, **options)
    answers, metrics = serve(runner, jobs(), drafts=drafts, num_blocks=num_blocks, chunk=chunk)
    assert answers == alone
    assert (metrics["num_preemptions"] > 0) == preempts
    assert metrics["accepted_draft_tokens"] < metrics["draft_tokens"]
    assert metrics["accepted_draft_tokens"] or drafts == OTHER


@needs_compiler
@pytest.mark.parametrize("ngrams", ["", NGRAM])
@pytest.mark.parametrize(("num_blocks", "chunk", "preempts"), [(200, 16, False), (20, 64, True)])
def test_the_same_in_bfloat16(directory: Path, num_blocks: int, chunk: int, preempts: bool, ngrams: str) -> None:
    """With and without drafts, alone and beside others, after hits in the prefix cache and after preemption."""
    plain = make_runner(directory, dtype="bfloat16", max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS)
    runner = make_runner(directory, dtype="bfloat16", max_model_len=CONTEXT, kv_tokens=num_blocks * BLOCK_TOKENS)
    expected: Answers = {}
    for message in jobs():
        expected |= serve(plain, [message])[0]
    answers, metrics = serve(runner, jobs(), drafts=ngrams, num_blocks=num_blocks, chunk=chunk)
    assert answers == expected
    assert metrics["prefix_cache_hits"]
    assert (metrics["num_preemptions"] > 0) == preempts
    assert bool(metrics["accepted_draft_tokens"]) == bool(ngrams)


def test_answers_are_the_same_on_two_ranks(directory: Path, options: dict[str, Path], drafts: str) -> None:
    with closing(RanksInThreads(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, **options)) as ranks:
        expected, _ = serve(ranks, jobs())
        answers, metrics = serve(ranks, jobs(), drafts=drafts)
    assert answers == expected
    assert metrics["draft_tokens"]
    assert metrics["accepted_draft_tokens"] or drafts == OTHER


def test_an_answer_that_repeats_itself_takes_few_steps(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS)
    message = msgspec.structs.replace(jobs()[0], sampling=msgspec.structs.replace(jobs()[0].sampling, max_tokens=150))
    message = msgspec.structs.replace(
        message, sampling=msgspec.structs.replace(message.sampling, allowed_token_ids=(40,))
    )
    answers, metrics = serve(runner, [message], drafts=NGRAM)
    assert answers["0"][0] == [40] * 150
    assert metrics["steps"] < 25


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_all_drafts_of_an_equal_model_are_right(directory: Path, number: int) -> None:
    """At any temperature, and in few steps."""
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, draft=directory)
    message = jobs()[number]
    message = msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, stop_token_ids=()))
    answers, metrics = serve(runner, [message], drafts=SAME)
    assert len(answers[str(number)][0]) == 70
    assert 50 < metrics["draft_tokens"] == metrics["accepted_draft_tokens"]
    assert metrics["steps"] < 15


def test_the_draft_model_finds_what_it_has_computed_of_a_prompt(directory: Path) -> None:
    """The second request of a prompt, after the first has ended."""
    prompt, runners = [*range(10, 110)], []
    for number_of_requests in (1, 2):
        runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, draft=directory)
        requests = [request(str(number), prompt, max_tokens=20) for number in range(number_of_requests)]
        answers, metrics = serve(runner, requests, drafts=SAME, max_num_seqs=1)
        runners.append(metrics["draft_rows"])
    assert answers["0"] == answers["1"]
    assert runners[0] > 100
    assert runners[1] - runners[0] < 40


def test_no_draft_is_longer_than_the_draft_models_context(directory: Path) -> None:
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, draft=directory)
    propose, ends = runner._proposals._model.propose, []  # type: ignore[union-attr]

    def observed(steps: Any) -> Any:
        ends.extend(step.start + 1 + step.num_proposed for step in steps)
        return propose(steps)

    runner._proposals._model.propose = observed  # type: ignore[union-attr, method-assign]
    serve(runner, jobs()[:1], drafts=SAME, draft_context=50)
    assert ends
    assert max(ends) < 50


@pytest.mark.parametrize("error", [StepError("broken"), StepError("no memory", out_of_memory=True)])
def test_a_step_that_fails_with_drafts_is_computed_without(
    directory: Path,
    options: dict[str, Path],
    alone: Answers,
    drafts: str,
    error: StepError,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails after sampling, when penalties and grammars have seen the drafted tokens."""
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, **options)
    sample = runner._sampling.sample
    num_failed = 0

    def failing(slots: Any, sequences: Any, drafted: Any, *rest: Any) -> StepError | None:
        nonlocal num_failed
        if not drafted:
            return sample(slots, sequences, drafted, *rest)
        num_failed += 1
        with monkeypatch.context() as patched:
            patched.setattr(
                "mmserve.model_backend.worker.token_sampling.ModelLogprobs.compute",
                lambda *_: (_ for _ in ()).throw(RuntimeError("broken")),
            )
            assert sample(slots, sequences, drafted, *rest) is not None
        return error

    monkeypatch.setattr(runner._sampling, "sample", failing)
    answers, _ = serve(runner, jobs(), drafts=drafts)
    assert num_failed
    assert answers == alone


@pytest.mark.parametrize("part", ["_forward", "_sample"])
def test_a_draft_model_that_fails_changes_no_answer(
    directory: Path, alone: Answers, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(directory, max_model_len=CONTEXT, kv_tokens=200 * BLOCK_TOKENS, draft=directory)
    model: Any = runner._proposals._model
    works, num_calls = getattr(model, part), 0

    def failing(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls % 5 == 0:
            raise RuntimeError("broken")
        return works(*args)

    monkeypatch.setattr(model, part, failing)
    answers, metrics = serve(runner, jobs(), drafts=SAME)
    assert answers == alone
    assert metrics["accepted_draft_tokens"]
