"""Rank processes on real sockets: readiness, results of step plans, agreement of one and two ranks, stop."""

from __future__ import annotations

import random
import signal
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from mmserve.messages.media import Handle
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.models.checkpoints import IMAGE, VOCAB, make_llama, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, make_runner
from tests.fakes.ranks.logprobs import check_logprobs
from tests.integration.model_backend.conftest import Ranks, StartRanks
from tests.integration.model_backend.rank_main import BAD_TOKEN
from tests.unit.router.builders import request


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def expected(directory: Path, prompt: list[int], num_tokens: int) -> list[int]:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1
    )
    return out[0, len(prompt) :].tolist()


@dataclass(frozen=True)
class Started:
    """Running ranks and their checkpoint."""

    directory: Path
    ranks: Ranks
    tp: int


@pytest.fixture(scope="module", params=[1, 2])
def llama(
    request: pytest.FixtureRequest, start_ranks: StartRanks, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    """One rank; then two ranks, with a checkpoint whose embeddings are tied."""
    tp, path = request.param, tmp_path_factory.mktemp("model")
    directory = make_llama(path, tie_word_embeddings=tp == 2, attention_bias=True, vocab_size=VOCAB + 1)
    with start_ranks(directory, tp) as ranks:
        yield Started(directory, ranks, tp)


@pytest.fixture(scope="module")
def llava(start_ranks: StartRanks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Two ranks. The last test of this file kills one of them."""
    directory = make_llava(tmp_path_factory.mktemp("model"))
    with start_ranks(directory, 2) as ranks:
        yield Started(directory, ranks, 2)


def test_tokens_equal_transformers(llama: Started) -> None:
    directory, ranks, tp = llama.directory, llama.ranks, llama.tp
    assert (ranks.ready.num_blocks, ranks.ready.block_tokens) == (200, BLOCK_TOKENS)
    assert [detail["kv_tokens"] for detail in ranks.details] == [200 * BLOCK_TOKENS] * tp
    driver = Driver(ranks, chunk=16)
    texts = prompts(40, 7, 17)
    asking = SamplingParams(max_tokens=1000, temperature=0.0, logprobs=5)
    sequences = [driver.add(slot, prompt, sampling=asking) for slot, prompt in enumerate(texts)]
    driver.run(12)
    assert [s.output[:12] for s in sequences] == [expected(directory, prompt, 12) for prompt in texts]
    for prompt, sequence in zip(texts, sequences, strict=True):
        check_logprobs(directory, prompt, sequence.output, sequence.logprobs)
    ranks.send(StepPlan(step_id=99, free=(0, 1, 2)))


def answers(ranks: Ranks, texts: list[list[int]], stop: int, depth: int) -> list[list[int]]:
    """Output of the ranks under a scheduler with ``depth`` plans in flight."""
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16, max_model_len=256)
    scheduler = Scheduler(
        config,
        num_blocks=ranks.ready.num_blocks,
        block_tokens=ranks.ready.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: None,
    )
    for index, text in enumerate(texts):
        message = request(str(index), text, max_tokens=12, stop_ids=(stop,))
        greedy = msgspec.structs.replace(message.sampling, temperature=0.0)
        scheduler.receive(msgspec.structs.replace(message, sampling=greedy))
    in_flight, results = deque[StepPlan](), deque[StepResult]()
    while not scheduler.idle:
        while len(in_flight) < depth and (plan := scheduler.schedule()):
            ranks.send(plan)
            in_flight.append(plan)
        plan = in_flight.popleft()
        if plan.steps and not results:
            results += ranks.inbox.drain(block=True, timeout_s=60)
        scheduler.apply(plan, results.popleft() if plan.steps else StepResult(step_id=plan.step_id, tokens=()))
    assert scheduler.kv.num_used == 0
    output: list[list[int]] = [[] for _ in texts]
    for _, reply in scheduler.take_replies():
        output[int(reply.id)] += reply.token_ids
    return output


def test_overlapped_plans_do_not_change_tokens(llama: Started) -> None:
    """One answer ends with a stop token; the token already scheduled after it is discarded."""
    directory, ranks = llama.directory, llama.ranks
    texts = prompts(40, 7, 17, 30)
    whole = [expected(directory, text, 12) for text in texts]
    stop = whole[0][5]
    cut = [output[: output.index(stop) + 1] if stop in output else output for output in whole]
    assert [answers(ranks, texts, stop, depth) for depth in (1, 2)] == [cut, cut]


def test_sigterm_ends_ranks_in_good_order(llama: Started) -> None:
    ranks, tp = llama.ranks, llama.tp
    for process in ranks.processes:
        process.send_signal(signal.SIGTERM)
    assert [process.stdout.readline() for process in ranks.processes] == ["stopped\n"] * tp
    assert [process.wait(30) for process in ranks.processes] == [0] * tp


def test_two_ranks_agree_on_images_samples_and_failures(llava: Started) -> None:
    """A batch with an image, sampled tokens and stale handles gives the same result as one rank; no rank ends."""
    directory, ranks = llava.directory, llava.ranks
    random_params = SamplingParams(max_tokens=50, temperature=0.9, top_p=0.9, seed=5, logprobs=2)
    rows = torch.randn(16, 64, generator=torch.manual_seed(2))
    handle, end = put_rows(ranks.arena, rows, 0)
    stale = Handle(handle.generation + 1, handle.offset, handle.nbytes)
    forged = Handle(handle.generation, end, handle.nbytes)
    outputs = []
    for driver in (Driver(ranks, chunk=10), Driver(make_runner(directory, ranks.arena), chunk=10)):
        sequences = []
        for slot, image in enumerate((handle, stale, forged)):
            prompt, spans = prompt_with_images([9, 8, *[IMAGE] * 16, 7], [image], image_id=IMAGE, num_tokens=16)
            sequences.append(driver.add(slot, prompt, spans=spans, sampling=random_params))
        driver.run(8, may_fail={1, 2})
        assert {slot: failure.media_lost for slot, failure in driver.failures.items()} == {1: True, 2: True}
        outputs.append(sequences[0].output)
        assert [pairs[0][0] for pairs in sequences[0].logprobs] == sequences[0].output
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 8


def test_an_error_of_one_rank_fails_only_the_sequence_at_fault(llava: Started) -> None:
    good = [9, 8, 7, 6]
    alone = Driver(make_runner(llava.directory))
    expected_output = alone.add(0, good)
    alone.run(5)
    driver = Driver(llava.ranks)
    sequences = [driver.add(slot, [BAD_TOKEN, *good] if slot == 4 else good) for slot in range(3, 8)]
    driver.run(5, may_fail={4})
    assert "another rank" in driver.failures[4].message
    assert [sequence.output for sequence in sequences if sequence.slot != 4] == [expected_output.output] * 4
    llava.ranks.send(StepPlan(step_id=0, free=tuple(range(3, 8))))


class _WithoutResult(Ranks):
    """Sends plans and does not wait for their results."""

    def step(self, plan: StepPlan) -> StepResult:
        self.send(plan)
        return StepResult(step_id=plan.step_id, tokens=())


def test_a_rank_that_loses_its_peer_ends(llava: Started) -> None:
    """A rank that kept waiting for the other one would prevent the supervisor from restarting the engine."""
    ranks = llava.ranks
    ranks.send(StepPlan(step_id=0))  # connects to both, if no test did before
    ranks.processes[1].kill()
    ranks.processes[1].wait(30)
    driver = Driver(_WithoutResult(**vars(ranks)))
    driver.add(3, [5, 6, 7])
    driver.step()
    assert ranks.processes[0].wait(60) != 0
