"""The scheduler with a real rank: tokens and log-probabilities equal those of a greedy loop over the transformers
model, with batching, chunked prefill, prefix hits and preemption."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from mmserve.messages.logprobs import unpack
from mmserve.messages.request import GenerateRequest
from mmserve.messages.step import SlotFailure, StepPlan, StepResult
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.models.checkpoints import VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, make_runner
from tests.fakes.ranks.logprobs import check_logprobs
from tests.unit.router.builders import request

NUM_NEW = 36


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def jobs() -> list[list[int]]:
    """Prompts with shared prefixes, some longer than a chunk."""
    draw = random.Random(5)
    prefix = [draw.randrange(4, VOCAB) for _ in range(70)]
    return [prefix[: draw.choice([0, 20, 48, 70])] + [draw.randrange(4, VOCAB) for _ in range(5)] for _ in range(7)]


def greedy(request_id: str, prompt: list[int], num_new: int = NUM_NEW) -> GenerateRequest:
    """A greedy request. Its stop token is never sampled, but keeps the admission estimate from knowing the length."""
    message = request(request_id, prompt, max_tokens=num_new, stop_ids=(VOCAB - 1,), logprobs=3)
    return msgspec.structs.replace(message, sampling=msgspec.structs.replace(message.sampling, temperature=0.0))


def expected(model: transformers.LlamaForCausalLM, prompt: list[int], num_new: int = NUM_NEW) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_new and tokens[-1] != VOCAB - 1:
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def answers(directory: Path) -> dict[str, list[int]]:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return {str(index): expected(model, prompt) for index, prompt in enumerate(jobs())}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("num_blocks", "chunk", "preempts"), [(100, 512, False), (100, 32, False), (9, 32, True)])
def test_tokens_are_those_of_the_model(
    directory: Path, num_blocks: int, chunk: int, preempts: bool, depth: int, answers: dict[str, list[int]]
) -> None:
    runner = make_runner(directory, max_model_len=128, kv_tokens=num_blocks * BLOCK_TOKENS)
    metrics: list[str] = []
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=chunk, max_model_len=128),
        num_blocks=num_blocks,
        block_tokens=runner.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: metrics.append(name),
    )
    for _ in range(300 if preempts else 0):
        scheduler._admission.kv_demand.output_lengths.observe(1)
    for index, prompt in enumerate(jobs()):
        scheduler.receive(greedy(str(index), prompt))
    output: dict[str, list[int]] = {name: [] for name in answers}
    logprobs: dict[str, list[list[tuple[int, float]]]] = {name: [] for name in answers}
    cached = 0
    in_flight: deque[StepPlan] = deque()
    while not scheduler.idle:
        while len(in_flight) < depth and (plan := scheduler.schedule()):
            in_flight.append(plan)
        plan = in_flight.popleft()
        scheduler.apply(plan, runner.step(plan))
        for _, reply in scheduler.take_replies():
            output[reply.id].extend(reply.token_ids)
            logprobs[reply.id].extend(map(unpack, reply.logprobs))
            cached += reply.num_cached_tokens
    assert output == answers
    for prompt, name in zip(jobs(), answers, strict=True):
        check_logprobs(directory, prompt, answers[name], logprobs[name])
    assert scheduler.kv.num_used == 0
    assert cached > 0
    assert ("num_preemptions" in metrics) == preempts


def without(step: Callable[[StepPlan], StepResult], plan: StepPlan, slot: int) -> StepResult:
    """Run the plan except for the slot's step, which is reported as failed."""
    steps = tuple(each for each in plan.steps if each.slot != slot)
    result = step(msgspec.structs.replace(plan, steps=steps))
    failure = SlotFailure(slot=slot, media_lost=False, message="not computed")
    return msgspec.structs.replace(result, failures=(*result.failures, failure))


@pytest.mark.parametrize("leader_fails", [False, True])
@pytest.mark.parametrize(("head_dim", "attention"), [(8, SdpaAttention), (16, PagedCpuAttention)])
def test_equal_prefixes_that_arrive_together(
    tmp_path: Path, head_dim: int, attention: type[SdpaAttention] | type[PagedCpuAttention], leader_fails: bool
) -> None:
    """Seven sequences read blocks that the first one writes in the same step."""
    directory = make_llama(tmp_path / "model", head_dim=head_dim)
    runner = make_runner(directory)
    if not isinstance(runner._attention, attention):
        pytest.skip("the kernels cannot be used here")
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    draw = random.Random(7)
    prefix = [draw.randrange(4, VOCAB) for _ in range(100)]
    prompts = [prefix + [draw.randrange(4, VOCAB) for _ in range(1 + index % 3)] for index in range(8)]
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=256)
    scheduler = Scheduler(
        config,
        num_blocks=runner.num_blocks,
        block_tokens=runner.block_tokens,
        now=lambda: 0.0,
        record=lambda name, value: None,
    )
    for index, prompt in enumerate(prompts):
        scheduler.receive(greedy(str(index), prompt, num_new=6))
    plan = scheduler.schedule()
    assert plan is not None
    assert [step.start for step in plan.steps] == [0] + 7 * [96]
    result = without(runner.step, plan, plan.steps[0].slot) if leader_fails else runner.step(plan)
    scheduler.apply(plan, result)
    while plan := scheduler.schedule():
        scheduler.apply(plan, runner.step(plan))
    output: dict[str, list[int]] = {str(index): [] for index in range(8)}
    for _, reply in scheduler.take_replies():
        output[reply.id].extend(reply.token_ids)
    first = [] if leader_fails else expected(model, prompts[0], 6)
    assert list(output.values()) == [first, *(expected(model, prompt, 6) for prompt in prompts[1:])]
