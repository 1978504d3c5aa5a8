"""The scheduler with real ranks and grammars: answers fit, and are the same after preemption, from the prefix cache, in
chunks, with plans in flight, and beside sequences without a grammar; and as when each token is computed in a step."""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from mmserve.config.config import Config
from mmserve.grammar.sources import regex_grammar
from mmserve.messages.request import GenerateRequest
from mmserve.messages.step import StepPlan
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.models.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, Engine, make_runner
from tests.fakes.ranks.grammars import JSON, decode, encode
from tests.fakes.ranks.ranks_in_threads import RanksInThreads
from tests.unit.router.builders import request

NUM = 8
Answers = dict[str, tuple[list[int], str | None]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def jobs() -> list[GenerateRequest]:
    """Drawn from prompts with a shared prefix; every other one has a grammar."""
    draw = random.Random(5)
    prefix = [draw.randrange(4, VOCAB) for _ in range(40)]
    made = []
    for index in range(NUM):
        prompt = prefix[: draw.choice([20, 40])] + [draw.randrange(4, VOCAB) for _ in range(5)]
        message = request(str(index), prompt, max_tokens=60, stop_ids=(EOS,), seed=index)
        grammar = "" if index % 2 else JSON
        made.append(with_sampling(message, grammar=grammar))
    return made


def with_sampling(message: GenerateRequest, **changes: Any) -> GenerateRequest:
    return msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, **changes))


def serve(engine: Engine, requests: list[GenerateRequest], *, depth: int, num_blocks: int, chunk: int) -> Answers:
    """All requests at once. Also the number of preemptions, and of steps that bring a token, under these names."""
    metrics: Counter[str] = Counter()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=chunk, max_model_len=128),
        num_blocks=num_blocks,
        block_tokens=engine.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: metrics.update([name]),
    )
    for _ in range(300):
        scheduler._admission.kv_demand.output_lengths.observe(1)
    for message in requests:
        scheduler.receive(message)
    answers: Answers = {message.id: ([], None) for message in requests}
    in_flight: deque[StepPlan] = deque()
    num_steps = 0
    while not scheduler.idle:
        while len(in_flight) < depth and (plan := scheduler.schedule()):
            in_flight.append(plan)
        plan = in_flight.popleft()
        result = engine.step(plan)
        num_steps += bool(result.tokens)
        scheduler.apply(plan, result)
        for _, reply in scheduler.take_replies():
            tokens, _ = answers[reply.id]
            answers[reply.id] = [*tokens, *reply.token_ids], reply.finish
    answers["preemptions"] = [metrics["num_preemptions"]], None
    answers["steps"] = [num_steps], None
    return answers


@pytest.fixture(scope="module")
def stepwise(directory: Path) -> ModelRunner:
    """Computes a step for each token."""
    config = Config(model=str(directory), max_num_seqs=8, jump_forward=False)
    return make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS, config=config)


@pytest.fixture(scope="module")
def alone(stepwise: ModelRunner) -> Answers:
    found: Answers = {}
    for message in jobs():
        found |= serve(stepwise, [message], depth=1, num_blocks=100, chunk=512)
    del found["preemptions"], found["steps"]
    return found


def test_answers_fit(alone: Answers) -> None:
    for name, (tokens, finish) in alone.items():
        if int(name) % 2 == 0:
            assert finish == "stop"
            assert json.loads(decode(tokens)).keys() == {"colour", "count"}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("num_blocks", "chunk", "preempts"), [(100, 512, False), (100, 16, False), (9, 32, True)])
def test_answers_do_not_depend_on_what_else_runs(
    directory: Path, alone: Answers, num_blocks: int, chunk: int, preempts: bool, depth: int
) -> None:
    runner = make_runner(directory, max_model_len=128, kv_tokens=num_blocks * BLOCK_TOKENS)
    together = serve(runner, jobs(), depth=depth, num_blocks=num_blocks, chunk=chunk)
    assert (together.pop("preemptions")[0][0] > 0) == preempts
    del together["steps"]
    assert together == alone


FIXED = regex_grammar("the first number is [0-9], and the second one is [0-9]", "fixed")


@pytest.mark.parametrize(("depth", "num_steps"), [(1, 4), (2, 7)])
@pytest.mark.parametrize("chunk", [16, 512])
def test_text_that_a_grammar_forces_takes_few_steps(
    directory: Path, stepwise: ModelRunner, depth: int, num_steps: int, chunk: int
) -> None:
    """Four bring a token: the prompt's, two that compute the text before a number, the last. A plan in flight adds one
    for the first token of each text, and one after the end."""
    jumping = make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)
    for seed in range(4):
        message = with_sampling(jobs()[0], grammar=FIXED, seed=seed)
        expected = serve(stepwise, [message], depth=1, num_blocks=100, chunk=512)
        found = serve(jumping, [message], depth=depth, num_blocks=100, chunk=chunk)
        assert found[message.id] == expected[message.id]
        assert expected["steps"][0][0] == len(expected[message.id][0]) == 47
        assert found["steps"][0][0] == num_steps


@pytest.mark.parametrize("depth", [1, 2])
def test_forced_text_ends_where_the_request_says(directory: Path, stepwise: ModelRunner, depth: int) -> None:
    jumping = make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)
    stop = encode("n")[0]
    for changes in ({"max_tokens": 1}, {"max_tokens": 2}, {"max_tokens": 17}, {"stop_token_ids": (EOS, stop)}):
        message = with_sampling(jobs()[0], grammar=FIXED, **changes)
        expected = serve(stepwise, [message], depth=1, num_blocks=100, chunk=512)
        found = serve(jumping, [message], depth=depth, num_blocks=100, chunk=512)
        assert found[message.id] == expected[message.id]
        assert len(found[message.id][0]) == changes.get("max_tokens", 11)


def test_penalties_count_forced_tokens(directory: Path, stepwise: ModelRunner) -> None:
    jumping = make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)
    grammar = regex_grammar("(forty-two|four)( and [0-9a-z]{2})+", "penalised")
    for seed in range(4):
        penalties = {"frequency_penalty": 0.9, "presence_penalty": 0.5, "repetition_penalty": 1.5}
        message = with_sampling(jobs()[0], grammar=grammar, seed=seed, **penalties)
        expected = serve(stepwise, [message], depth=1, num_blocks=100, chunk=512)
        for depth in (1, 2):
            found = serve(jumping, [message], depth=depth, num_blocks=100, chunk=512)
            assert found[message.id] == expected[message.id]
            assert found["steps"][0][0] < expected["steps"][0][0]


@pytest.mark.parametrize("changes", [{"logprobs": 1}, {"allowed_token_ids": tuple(range(VOCAB))}])
def test_a_sequence_that_reports_or_bans_more_computes_each_token(directory: Path, changes: dict[str, Any]) -> None:
    jumping = make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)
    message = with_sampling(jobs()[0], grammar=FIXED, **changes)
    found = serve(jumping, [message], depth=1, num_blocks=100, chunk=512)
    assert found["steps"][0][0] == len(found[message.id][0]) == 47


def test_answers_of_two_ranks_are_those_of_one(directory: Path, alone: Answers) -> None:
    with closing(RanksInThreads(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)) as ranks:
        together = serve(ranks, jobs(), depth=2, num_blocks=100, chunk=64)
    del together["preemptions"], together["steps"]
    assert together == alone


def test_a_resumed_answer_continues_with_the_same_tokens(directory: Path, alone: Answers) -> None:
    """As after the death of an engine: new ranks, new scheduler, and the tokens that the client has."""
    runner = make_runner(directory, max_model_len=128, kv_tokens=100 * BLOCK_TOKENS)
    resumed = [
        msgspec.structs.replace(message, output_ids=torch.tensor(alone[message.id][0][:7]).numpy().tobytes(), attempt=1)
        for message in jobs()
        if len(alone[message.id][0]) > 7
    ]
    found = serve(runner, resumed, depth=2, num_blocks=100, chunk=64)
    assert len(resumed) > 4
    for message in resumed:
        tokens, finish = alone[message.id]
        assert found[message.id] == (tokens[7:], finish)
