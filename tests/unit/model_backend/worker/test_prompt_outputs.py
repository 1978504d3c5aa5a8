"""Log-probabilities of prompt tokens and embeddings equal those of transformers in float32."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.logprobs import NO_TOKEN, row_nbytes, unpack
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import SequenceStep, StepResult
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker import prompt_outputs
from mmserve.model_backend.worker.input_batch import Slot
from mmserve.model_backend.worker.prompt_outputs import NOT_FINITE_PROMPT
from tests.fakes.models.checkpoints import VOCAB, make_llama
from tests.fakes.ranks.engine import Driver, Engine, make_runner, spoil_embedding
from tests.fakes.ranks.logprobs import TOLERANCE, check_logprobs
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

TOP = 4


@pytest.fixture(scope="module", params=[{}, {"head_dim": 16}], ids=["plain", "kernels"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), **request.param)


@pytest.fixture(params=[1, 2], ids=["alone", "two ranks"])
def engine(request: pytest.FixtureRequest, directory: Path) -> Iterator[Engine]:
    if request.param == 1:
        yield make_runner(directory)
        return
    ranks = RanksInThreads(directory)
    yield ranks
    ranks.close()


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def scoring(top: int = TOP, **params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 0, "temperature": 0.0, "prompt_logprobs": top} | params)


def rows_of(packed: bytes, top: int = TOP) -> list[list[tuple[int, float]]]:
    size = row_nbytes(top)
    return [unpack(packed[start : start + size]) for start in range(0, len(packed), size)]


def compute(driver: Driver, slot: int) -> bytes:
    """Run until the slot's prompt is computed; its rows."""
    packed = b""
    while driver.running:
        packed += dict(driver.step().prompt_logprobs).get(slot, b"")
        for sequence in [each for each in driver.running if each.computed >= each.num_prompt]:
            driver.drop(sequence)
    return packed


def check(directory: Path, prompt: Sequence[int], packed: bytes, top: int = TOP) -> None:
    check_logprobs(directory, prompt[:1], prompt[1:], rows_of(packed, top))


@pytest.mark.parametrize("chunk", [1000, 20, 1], ids=["whole", "chunked", "token by token"])
def test_prompt_logprobs_equal_transformers(directory: Path, engine: Engine, chunk: int) -> None:
    (prompt,) = prompts(50)
    driver = Driver(engine, chunk=chunk)
    driver.add(0, prompt, sampling=scoring())
    check(directory, prompt, compute(driver, 0))


def test_pieces_of_few_logits_give_the_same(directory: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_outputs, "_PIECE_LOGITS", 7 * VOCAB)
    (prompt,) = prompts(50)
    driver = Driver(engine)
    driver.add(0, prompt, sampling=scoring())
    check(directory, prompt, compute(driver, 0))


def test_a_batch_of_all_kinds(directory: Path, engine: Engine) -> None:
    """Two prompts that are scored by different numbers, one that is embedded, one that answers, in chunks."""
    first, second, embedded, answering = prompts(45, 31, 50, 40)
    driver = Driver(engine, chunk=16)
    driver.add(3, answering, sampling=SamplingParams(max_tokens=9, temperature=0.0))
    driver.add(0, first, sampling=scoring(0))
    driver.add(1, embedded, sampling=SamplingParams(max_tokens=0), pooling=True)
    sequence = driver.add(2, second, sampling=scoring(max_tokens=9, logprobs=2))
    packed: dict[int, bytes] = {}
    embeddings: dict[int, bytes] = {}
    for _ in range(4):
        result = driver.step()
        assert not result.failures
        for slot, rows in result.prompt_logprobs:
            packed[slot] = packed.get(slot, b"") + rows
        embeddings |= dict(result.embeddings)
        for done in [each for each in driver.running if each.slot in (0, 1) and each.computed >= each.num_prompt]:
            driver.drop(done)
    check(directory, first, packed[0], 0)
    check(directory, second, packed[2])
    check_logprobs(directory, second, sequence.output, sequence.logprobs)
    check_embedding(directory, embedded, embeddings[1])


def test_rows_that_were_returned_before_are_left_out(directory: Path) -> None:
    """Also after a preemption, when the slot's tokens are the prompt and some output."""
    (prompt,) = prompts(30)
    runner = make_runner(directory)
    for num_rows, output in ((0, []), (12, []), (12, [5, 6, 7]), (29, [5])):
        driver = Driver(runner, chunk=9)
        driver.add(0, prompt + output, num_prompt=30, sampling=scoring(max_tokens=99), num_prompt_logprobs=num_rows)
        packed = b""
        for _ in range(4):
            packed += dict(driver.step().prompt_logprobs).get(0, b"")
        found = rows_of(packed)
        assert len(found) == 29 - num_rows
        if found:
            check_logprobs(directory, prompt[: num_rows + 1], prompt[num_rows + 1 :], found)


def test_rows_do_not_depend_on_plans_in_flight(directory: Path) -> None:
    (prompt,) = prompts(40)
    results = []
    for depth in (1, 2):
        runner, plans = make_runner(directory), []
        driver = Driver(_Recording(plans), chunk=15)
        driver.add(0, prompt, sampling=scoring())
        for _ in range(3):
            driver.step()
        launched = [runner.launch(plan) for plan in plans] if depth == 2 else []
        collected = map(runner.collect, launched) if launched else map(runner.step, plans)
        results.append(b"".join(rows for result in collected for _, rows in result.prompt_logprobs))
    assert results[0] == results[1]
    check(directory, prompt, results[0])


class _Recording:
    """An engine that computes nothing."""

    block_tokens = 16

    def __init__(self, plans: list[Any]) -> None:
        self._runner_step = plans.append

    def step(self, plan: Any) -> Any:
        self._runner_step(plan)
        return StepResult(step_id=plan.step_id, tokens=())


def test_tokens_of_images_have_no_log_probability(directory: Path) -> None:
    """Their ids are virtual; what they embed to does not matter here."""
    prompt = [10, 11, FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1, 12, 13]
    slot = Slot(array("q", prompt), 6, (), scoring(), 6, 0, False, 6)
    chunk = prompt_outputs._scored_chunk(slot, SequenceStep(0, 0, 6, (), False), 3, VOCAB)
    assert chunk is not None
    assert (chunk.num_rows, chunk.token_ids.tolist(), chunk.batch_rows.tolist()) == (5, [11, 12, 13], [3, 6, 7])


# ---- embeddings


def check_embedding(directory: Path, prompt: Sequence[int], found: bytes) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    assert np.frombuffer(found, dtype=np.float32) == pytest.approx(expected.numpy(), abs=10 * TOLERANCE)


@pytest.mark.parametrize("chunk", [1000, 20], ids=["whole", "chunked"])
@pytest.mark.parametrize("length", [1, 50])
def test_embeddings_equal_transformers(directory: Path, engine: Engine, length: int, chunk: int) -> None:
    (prompt,) = prompts(length)
    driver = Driver(engine, chunk=chunk)
    sequence = driver.add(0, prompt, sampling=SamplingParams(max_tokens=0), pooling=True)
    while sequence.computed < length:
        result = driver.step()
        assert bool(result.embeddings) == (sequence.computed == length)
    check_embedding(directory, prompt, dict(result.embeddings)[0])
    assert not result.tokens


# ---- failures


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [({"sampling": scoring()}, -2), ({"sampling": SamplingParams(max_tokens=0), "pooling": True}, -1)],
)
def test_what_is_not_finite_fails_its_sequence_alone(directory: Path, settings: dict[str, Any], wrong: int) -> None:
    good, bad = prompts(20, 20)
    runner = make_runner(directory)
    spoil_embedding(runner, bad[wrong])
    good = [token for token in good if token != bad[wrong]]
    driver = Driver(runner)
    driver.add(0, good, sampling=scoring())
    driver.add(1, bad, **settings)
    result = driver.step()
    assert [(failure.slot, failure.message) for failure in result.failures] == [(1, NOT_FINITE_PROMPT)]
    check(directory, good, dict(result.prompt_logprobs)[0])


def test_a_chunk_that_memory_does_not_suffice_for_returns_each_row_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, (prompt,) = make_runner(directory), prompts(60)
    compute_all: Callable[..., Any] = prompt_outputs.compute_prompt_results

    def compute_few(model: Any, outputs: torch.Tensor, wanted: Any, *others: Any) -> Any:
        if len(wanted.scored) > 20:
            raise MemoryError
        return compute_all(model, outputs, wanted, *others)

    monkeypatch.setattr("mmserve.model_backend.worker.model_runner.compute_prompt_results", compute_few)
    driver = Driver(runner)
    driver.add(0, prompt, sampling=scoring())
    result = driver.step()
    assert result.out_of_memory
    check(directory, prompt, dict(result.prompt_logprobs)[0])


def test_padding_of_a_small_vocabulary() -> None:
    chunk = prompt_outputs.ScoredChunk(0, 1, np.array([0]), np.array([1]), np.array([0]), top=5)
    to_host = PlainTransfers(torch.device("cpu")).to_host
    likely = to_host(torch.tensor([[1, 0, 2]])), to_host(torch.tensor([[-0.5, -1.0, -3.0]]))
    own, pooled = to_host(torch.tensor([-0.5])), to_host(torch.zeros(0, 4))
    results = prompt_outputs.PromptResults((chunk,), own, likely, (), pooled)
    ((_, packed),) = results.rows()
    assert packed is not None
    assert [token for token, _ in unpack(packed)] == [1, 1, 0, 2, NO_TOKEN, NO_TOKEN]
