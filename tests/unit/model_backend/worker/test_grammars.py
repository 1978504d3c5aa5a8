"""Sequences with grammars on whole ranks: one or two of them, plans in flight, resumed in the middle."""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from mmserve.grammar.sources import regex_grammar
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan, StepResult
from mmserve.model_backend.worker.model_runner import InFlight, ModelRunner
from tests.fakes.models.checkpoints import EOS, VOCAB, make_llama
from tests.fakes.ranks.engine import Driver, Running, make_runner
from tests.fakes.ranks.grammars import JSON, SCHEMA, decode, encode
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

PROMPTS = [list(range(10, 40)), [9, 250, 8], list(range(60, 75))]
DRAWN = SamplingParams(max_tokens=1000, temperature=1.0, seed=3, grammar=JSON, stop_token_ids=(EOS,))
GREEDY = SamplingParams(max_tokens=1000, temperature=0.0, grammar=JSON, stop_token_ids=(EOS,))
CONSTRAINED = {"drawn": DRAWN, "greedy": GREEDY}
FREE = SamplingParams(max_tokens=1000, temperature=0.0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def ranks(directory: Path) -> Iterator[RanksInThreads]:
    with closing(RanksInThreads(directory)) as made:
        yield made


def generate(driver: Driver, slot: int, prompt: list[int], sampling: SamplingParams, output: list[int]) -> Running:
    """Run one sequence to its end. Deferred sequences start again, as the router makes them."""
    driver.add(slot, [*prompt, *output], num_prompt=len(prompt), sampling=sampling)
    while True:
        result = driver.step()
        assert slot not in driver.failures
        for late in [each for each in driver.running if each.slot in result.deferred]:
            driver.drop(late)
            driver.add(late.slot, late.tokens, num_prompt=late.num_prompt, sampling=late.sampling)
        sequence = next(each for each in driver.running if each.slot == slot)
        if EOS in sequence.output:
            driver.drop(sequence)
            return sequence


def is_valid(text: str) -> bool:
    answer = json.loads(text)
    return list(answer) == SCHEMA["required"] and answer["colour"] in ("red", "blue") and 0 <= answer["count"] <= 99


@pytest.fixture(scope="module")
def answers(directory: Path) -> dict[str, list[int]]:
    driver = Driver(make_runner(directory))
    return {name: generate(driver, 0, PROMPTS[0], sampling, []).output for name, sampling in CONSTRAINED.items()}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_an_answer_fits_its_schema_on_any_number_of_ranks(
    ranks: RanksInThreads, answers: dict[str, list[int]], name: str
) -> None:
    assert is_valid(decode(answers[name]))
    assert generate(Driver(ranks), 0, PROMPTS[0], CONSTRAINED[name], []).output == answers[name]


@pytest.mark.parametrize("num_known", [1, 5, -1])
def test_a_resumed_sequence_continues_with_the_same_text(
    directory: Path, answers: dict[str, list[int]], num_known: int
) -> None:
    driver = Driver(make_runner(directory), chunk=7)
    for name, expected in answers.items():
        assert generate(driver, 0, PROMPTS[0], CONSTRAINED[name], expected[:num_known]).output == expected


def test_other_sequences_of_the_batch_are_not_changed(directory: Path, answers: dict[str, list[int]]) -> None:
    alone = Driver(make_runner(directory))
    expected = alone.add(0, PROMPTS[1], sampling=FREE)
    alone.run(8)
    driver = Driver(make_runner(directory))
    free = driver.add(1, PROMPTS[1], sampling=FREE)
    driver.add(2, PROMPTS[2] + encode("nonsense"), num_prompt=len(PROMPTS[2]), sampling=DRAWN)
    assert generate(driver, 0, PROMPTS[0], DRAWN, []).output == answers["drawn"]
    assert free.output[:8] == expected.output
    assert driver.failures[2].grammar


@pytest.mark.parametrize("depth", [2, 3])
def test_plans_in_flight_see_the_tokens_before_them(directory: Path, answers: dict[str, list[int]], depth: int) -> None:
    runner = make_runner(directory)
    warm = Driver(runner)
    generate(warm, 7, PROMPTS[0], DRAWN, [])  # its grammar is compiled from here on
    expected = answers["drawn"]
    results = run(runner, plans(DRAWN, len(expected)), depth)
    assert [token for result in results for _, (token,) in result.tokens] == expected


def test_a_sequence_with_a_plan_in_flight_is_deferred_until_it_starts_again(directory: Path) -> None:
    runner = make_runner(directory)
    assert runner._sampling._sampler is not None
    assert runner._sampling._sampler._grammars is not None
    compiler = runner._sampling._sampler._grammars._compiler
    held: list[object] = []
    compiler._submit = held.append  # type: ignore[method-assign]
    results = run(runner, plans(DRAWN, 3), depth=2)
    assert [result.deferred for result in results] == [(0,)] * 3
    assert not any(result.tokens or result.failures or result.forward_s for result in results)


def test_forced_tokens_are_computed_in_one_chunk_beside_a_plan_in_flight(directory: Path) -> None:
    """A router that knows them plans the chunk after the plan that computes the token before them."""
    runner, prompt = make_runner(directory), PROMPTS[0]
    sampling = msgspec.structs.replace(GREEDY, grammar=regex_grammar("fixed text, then [0-9]{3}", "x"))
    expected = generate(Driver(runner), 7, prompt, sampling, []).output
    runner.step(StepPlan(step_id=0, free=(7,)))
    first, second, *_ = plans(sampling, 2)
    started = runner.collect(runner.launch(first))
    (_, sampled), (_, forced) = started.tokens[0], started.forced[0]
    assert [*sampled, *forced] == expected[: len(forced) + 1] == encode("fixed text, then ")
    start = len(prompt) + 1
    chunk = SequenceStep(0, start, len(forced), (), True, forced[1:])
    in_flight = [runner.launch(plan) for plan in (second, StepPlan(step_id=2, steps=(chunk,)))]
    results = [runner.collect(each) for each in in_flight]
    assert [result.tokens[0][1] for result in results] == [forced[:1], (expected[len(forced) + 1],)]
    assert not any(result.forced or result.failures for result in results)
    last = SequenceStep(0, start + len(forced), 1, (), True)
    result = runner.step(StepPlan(step_id=3, steps=(last,)))
    assert result.tokens[0][1] == (expected[len(forced) + 2],)


@pytest.mark.parametrize("token_ids", [(5, 5), (5, 5, 5, 5), (5, 5, VOCAB), (5, 5, -1)])
def test_a_chunk_whose_tokens_do_not_continue_the_sequence_fails_alone(
    directory: Path, token_ids: tuple[int, ...]
) -> None:
    runner = make_runner(directory)
    first, *_ = plans(FREE, 1)
    runner.step(first)
    chunk = SequenceStep(0, len(PROMPTS[0]), 4, (), True, token_ids)
    failure = runner.step(StepPlan(step_id=1, steps=(chunk,))).failures[0]
    assert failure.slot == 0
    driver = Driver(runner)
    assert generate(driver, 1, PROMPTS[0], GREEDY, [])


def plans(sampling: SamplingParams, count: int) -> list[StepPlan]:
    """The prompt, then decode steps, as a router makes them without a single result."""
    prompt = PROMPTS[0]
    new = NewSequence(
        slot=0, token_ids=array("q", prompt).tobytes(), num_prompt_tokens=len(prompt), spans=(), sampling=sampling
    )
    blocks = tuple(range(100, 108))
    steps = [SequenceStep(0, 0, len(prompt), blocks, True)]
    steps += [SequenceStep(0, len(prompt) + number, 1, (), True) for number in range(count - 1)]
    return [StepPlan(step_id=n, new=(new,) if not n else (), steps=(step,)) for n, step in enumerate(steps)]


def run(runner: ModelRunner, made: list[StepPlan], depth: int) -> list[StepResult]:
    in_flight: deque[InFlight] = deque()
    results = []
    for plan in made:
        in_flight.append(runner.launch(plan))
        if len(in_flight) == depth:
            results.append(runner.collect(in_flight.popleft()))
    return results + [runner.collect(each) for each in in_flight]
