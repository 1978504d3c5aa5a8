"""A problem of one sequence fails that sequence; the tokens of the others do not change."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import FaultPoint, InjectedFault, arm, is_armed
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import BlockCopy, NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.worker import model_runner
from mmserve.model_backend.worker.forward_batch import ForwardBatch, build_forward_batch
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.model_backend.worker.sampling.logits_processors import LogitBias, Penalties
from mmserve.model_backend.worker.sampling.sampler import SampleRow
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import IMAGE, make_llama, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import GREEDY, Driver, make_runner, spoil_embedding

GOOD = list(range(10, 40))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 18)
    yield made
    made.close()


@pytest.fixture(scope="module")
def good_output(directory: Path) -> list[int]:
    driver = Driver(make_runner(directory))
    sequence = driver.add(0, GOOD)
    driver.run(6)
    return sequence.output


def image_prompt(handle: Handle) -> tuple[list[int], tuple[MediaSpan, ...]]:
    return prompt_with_images([5, *[IMAGE] * 16, 6], [handle], image_id=IMAGE, num_tokens=16)


@pytest.mark.parametrize("kind", ["generation", "offset", "beyond", "length", "negative"])
def test_a_wrong_handle_fails_with_media_lost(directory: Path, arena: Arena, good_output: list[int], kind: str) -> None:
    handle, _ = put_rows(arena, torch.randn(16, 64), 0)
    wrong = {
        "generation": Handle(handle.generation + 1, handle.offset, handle.nbytes),
        "offset": Handle(handle.generation, 64, handle.nbytes),
        "beyond": Handle(handle.generation, 1 << 40, handle.nbytes),
        "length": Handle(handle.generation, handle.offset, handle.nbytes - 4),
        "negative": Handle(handle.generation, -64, handle.nbytes),
    }[kind]
    prompt, spans = image_prompt(handle)
    driver = Driver(make_runner(directory, arena))
    healthy = driver.add(0, GOOD)
    driver.add(1, prompt, spans=(MediaSpan(**_fields(spans[0]) | {"embed": wrong}),))
    driver.run(6, may_fail={1})
    assert driver.failures[1].media_lost
    assert healthy.output == good_output


def test_a_handle_becomes_stale_between_chunks(directory: Path, arena: Arena, good_output: list[int]) -> None:
    handle, _ = put_rows(arena, torch.randn(16, 64), 0)
    prompt, spans = image_prompt(handle)
    driver = Driver(make_runner(directory, arena), chunk=8)
    driver.add(1, prompt, spans=spans)
    assert not driver.step().failures
    put_rows(arena, torch.randn(16, 64), 0, generation=handle.generation + 1)
    assert [failure.media_lost for failure in driver.step().failures] == [True]
    healthy = driver.add(0, GOOD)
    driver.run(6)
    assert healthy.output == good_output


def test_rows_that_are_not_finite_fail_without_media_lost(directory: Path, arena: Arena) -> None:
    rows = torch.randn(16, 64)
    rows[3, 3] = math.nan
    prompt, spans = image_prompt(put_rows(arena, rows, 0)[0])
    driver = Driver(make_runner(directory, arena))
    driver.add(1, prompt, spans=spans)
    driver.step()
    assert not driver.failures[1].media_lost
    assert "finite" in driver.failures[1].message


def test_a_process_without_an_arena_reports_media_lost(directory: Path, arena: Arena) -> None:
    prompt, spans = image_prompt(put_rows(arena, torch.randn(16, 64), 0)[0])
    driver = Driver(make_runner(directory))
    driver.add(1, prompt, spans=spans)
    driver.step()
    assert driver.failures[1].media_lost


@pytest.mark.parametrize("token", [FIRST_VIRTUAL_TOKEN, 260, -1])
def test_a_token_id_that_cannot_be_embedded_fails_its_sequence(
    directory: Path, good_output: list[int], token: int
) -> None:
    driver = Driver(make_runner(directory))
    healthy = driver.add(0, GOOD)
    driver.add(1, [4, token, 5])
    driver.run(6, may_fail={1})
    assert "token id" in driver.failures[1].message
    assert healthy.output == good_output


def test_logits_that_are_not_finite_fail_their_sequence_and_spoil_no_blocks(
    directory: Path, good_output: list[int]
) -> None:
    """Its KV blocks contain NaN; they are reused by another sequence and read as padding."""
    runner = make_runner(directory)
    spoil_embedding(runner, 200)
    driver = Driver(runner)
    broken = driver.add(1, [200] * 40)
    healthy = driver.add(0, GOOD)
    driver.step()
    assert "not finite" in driver.failures[1].message
    again = driver.add(2, GOOD, recycled=broken.blocks)
    driver.run(6)
    assert healthy.output == again.output == good_output


def new(slot: int, ids: list[int]) -> NewSequence:
    return NewSequence(
        slot=slot, token_ids=array("q", ids).tobytes(), num_prompt_tokens=len(ids), spans=(), sampling=GREEDY
    )


def step(slot: int, start: int, num_tokens: int, blocks: tuple[int, ...], sample: bool = True) -> SequenceStep:
    return SequenceStep(slot=slot, start=start, num_tokens=num_tokens, new_blocks=blocks, sample=sample)


@pytest.mark.parametrize(
    "bad",
    [
        step(5, 0, 3, (9,)),
        step(1, 0, 4, (9,)),
        step(1, 0, 3, ()),
        step(1, 0, 3, (100_000,)),
        step(1, 0, 3, (-1,)),
        step(1, 0, 3, tuple(range(90))),
        step(1, -1, 3, (9,)),
        step(1, 0, 0, (9,)),
        step(1, 0, 2, (9,)),
    ],
)
def test_a_step_that_does_not_fit_its_sequence_fails(
    directory: Path, good_output: list[int], bad: SequenceStep
) -> None:
    runner = make_runner(directory)
    plan = StepPlan(step_id=1, new=(new(0, GOOD), new(1, [4, 5, 6])), steps=(step(0, 0, 30, (0, 1)), bad))
    result = runner.step(plan)
    assert result.tokens == ((0, (good_output[0],)),)
    assert [failure.slot for failure in result.failures] == [bad.slot]


@pytest.mark.parametrize(("source", "num_tokens"), [(100_000, 3), (-1, 3), (2, 17), (2, 0)])
def test_a_copy_that_is_out_of_range_fails_the_sequence_that_needs_it(
    directory: Path, good_output: list[int], source: int, num_tokens: int
) -> None:
    runner = make_runner(directory)
    copies = (BlockCopy(source=source, target=9, num_tokens=num_tokens),)
    steps = (step(0, 0, 30, (0, 1)), step(1, 0, 3, (9,)))
    result = runner.step(StepPlan(step_id=1, new=(new(0, GOOD), new(1, [4, 5, 6])), copies=copies, steps=steps))
    assert result.tokens == ((0, (good_output[0],)),)
    assert [failure.slot for failure in result.failures] == [1]


def test_a_logits_processor_that_cannot_add_a_sequence_fails_only_that_sequence(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_runner(directory))

    def broken(*_: object) -> bool:
        raise RuntimeError("no such grammar")

    with monkeypatch.context() as patched:
        patched.setattr(LogitBias, "add_slot", broken)
        driver.add(1, GOOD[:9], sampling=SamplingParams(max_tokens=9, presence_penalty=1.0))
        driver.step()
    assert "logits processor" in driver.failures[1].message
    sequences = [driver.add(slot, GOOD) for slot in (0, 1)]
    driver.run(6)
    assert [sequence.output for sequence in sequences] == [good_output] * 2


def test_a_sequence_of_which_all_tokens_are_banned_fails(directory: Path, good_output: list[int]) -> None:
    driver = Driver(make_runner(directory))
    healthy = driver.add(0, GOOD)
    every_token = tuple(range(1000))
    driver.add(1, GOOD, sampling=SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=every_token, logprobs=1))
    driver.step()
    assert "no token is allowed" in driver.failures[1].message
    assert driver.failures[1].no_token
    driver.run(6)
    assert healthy.output == good_output


def test_malformed_new_sequences_fail(directory: Path, good_output: list[int]) -> None:
    runner = make_runner(directory)
    torn = NewSequence(slot=1, token_ids=b"123", num_prompt_tokens=1, spans=(), sampling=GREEDY)
    plan = StepPlan(
        step_id=1,
        free=(3,),
        new=(torn, new(99, [4]), new(0, GOOD)),
        steps=(step(1, 0, 1, (5,)), step(99, 0, 1, (6,)), step(0, 0, 30, (0, 1))),
    )
    result = runner.step(plan)
    assert result.tokens == ((0, (good_output[0],)),)
    assert sorted(failure.slot for failure in result.failures) == [1, 99]


BAD_TOKEN = 250
"""Sequences with this token fail where a test says so."""


def bad_in(batch: ForwardBatch) -> bool:
    return BAD_TOKEN in batch.token_ids.tolist()


def fail_on_bad_sequences(runner: ModelRunner, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the stage raise whenever a sequence with BAD_TOKEN takes part, alone or among others."""
    forward, sample = runner._forward, runner._sampling._sampler.sample

    def build(*arguments: Any) -> ForwardBatch:
        batch = build_forward_batch(*arguments)
        assert not bad_in(batch), "as it happens"
        return batch

    def forward_batch(batch: ForwardBatch, *arguments: Any) -> torch.Tensor | None:
        assert not bad_in(batch), "as it happens"
        return forward(batch, *arguments)

    def sample_rows(logits: torch.Tensor, rows: list[SampleRow]) -> torch.Tensor:
        logits += 1  # a processor may have changed logits before another one failed
        assert not any(BAD_TOKEN in runner._input_batch[row.slot].tokens for row in rows), "as it happens"
        logits -= 1
        return sample(logits, rows)

    match stage:
        case "build":
            monkeypatch.setattr(model_runner, "build_forward_batch", build)
        case "forward":
            monkeypatch.setattr(runner, "_forward", forward_batch)
        case "sample":
            monkeypatch.setattr(runner._sampling._sampler, "sample", sample_rows)


@pytest.mark.parametrize("stage", ["build", "forward", "sample"])
def test_an_error_in_a_step_fails_only_the_sequence_at_fault(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    runner = make_runner(directory)
    driver = Driver(runner)
    healthy = [driver.add(slot, GOOD) for slot in (0, 1, 2)]
    driver.step()
    fail_on_bad_sequences(runner, stage, monkeypatch)
    driver.add(3, [9, BAD_TOKEN, 8])
    healthy.append(driver.add(4, GOOD))
    driver.run(6, may_fail={3})
    assert "as it happens" in driver.failures[3].message
    assert [sequence.output[:6] for sequence in healthy] == [good_output] * 4


def test_an_error_and_a_lost_image_in_one_step_are_reported_once_each(
    directory: Path, arena: Arena, good_output: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = put_rows(arena, torch.randn(16, 64), 0)
    prompt, spans = image_prompt(Handle(handle.generation + 1, handle.offset, handle.nbytes))
    runner = make_runner(directory, arena)
    fail_on_bad_sequences(runner, "forward", monkeypatch)
    driver = Driver(runner)
    driver.add(1, prompt, spans=spans)
    driver.add(2, [9, BAD_TOKEN, 8])
    healthy = driver.add(0, GOOD)
    assert sorted((failure.slot, failure.media_lost) for failure in driver.step().failures) == [(1, True), (2, False)]
    driver.run(6)
    assert healthy.output == good_output


def test_the_time_of_a_step_that_was_tried_again_is_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(directory)
    fail_on_bad_sequences(runner, "forward", monkeypatch)
    driver = Driver(runner)
    driver.add(0, GOOD)
    assert driver.step().forward_s > 0
    driver.add(1, [BAD_TOKEN])
    assert driver.step().forward_s == 0


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_step_that_does_not_fit_the_memory_is_computed_in_parts(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    runner = make_runner(directory)
    forward = runner._forward

    def limited(batch: ForwardBatch, *others: Any) -> torch.Tensor | None:
        if len(batch.token_ids) > 7:
            raise error("as it happens")
        return forward(batch, *others)

    monkeypatch.setattr(runner, "_forward", limited)
    driver = Driver(runner)
    sequences = [driver.add(slot, GOOD) for slot in range(3)]
    assert driver.step().out_of_memory
    assert not driver.step().out_of_memory
    driver.run(6)
    assert [sequence.output for sequence in sequences] == [good_output] * 3


def test_a_sequence_that_does_not_fit_the_memory_token_by_token_fails(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(directory)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise torch.OutOfMemoryError("no memory")

        patched.setattr(runner, "_forward", full)
        driver = Driver(runner)
        driver.add(0, GOOD)
        driver.step()
    assert "no memory" in driver.failures[0].message
    healthy = driver.add(0, GOOD)
    driver.run(6)
    assert healthy.output == good_output


@pytest.mark.parametrize("bad_target", [9, 10])
def test_a_copy_that_raises_fails_only_the_sequence_that_needs_it(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch, bad_target: int
) -> None:
    runner = make_runner(directory)
    copy_tokens = runner._attention.copy_tokens

    def broken(kv: torch.Tensor, copies: list[BlockCopy]) -> None:
        assert bad_target not in [copy.target for copy in copies], "as it happens"
        copy_tokens(kv, copies)

    monkeypatch.setattr(runner._attention, "copy_tokens", broken)
    runner.step(StepPlan(step_id=1, new=(new(0, GOOD),), steps=(step(0, 0, 30, (0, 1)),)))
    copies = tuple(BlockCopy(source=1, target=target, num_tokens=14) for target in (9, 10))
    result = runner.step(
        StepPlan(
            step_id=2,
            new=(new(1, GOOD), new(2, GOOD)),
            copies=copies,
            steps=(step(0, 30, 1, ()), step(1, 29, 1, (0, 9)), step(2, 29, 1, (0, 10))),
        )
    )
    good, bad = (2, 1) if bad_target == 9 else (1, 2)
    assert dict(result.tokens) == {0: (good_output[1],), good: (good_output[0],)}
    assert [failure.slot for failure in result.failures] == [bad]


def test_copies_that_raise_and_overwrite_each_others_sources_all_fail(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried one by one, the second would read what the first has written."""
    runner = make_runner(directory)

    def broken(kv: torch.Tensor, copies: list[BlockCopy]) -> None:
        raise MemoryError("as it happens") if copies else AssertionError

    monkeypatch.setattr(runner._attention, "copy_tokens", broken)
    copies = (BlockCopy(source=1, target=9, num_tokens=3), BlockCopy(source=9, target=10, num_tokens=3))
    steps = (step(1, 3, 1, (9,)), step(2, 3, 1, (10,)))
    result = runner.step(StepPlan(step_id=1, new=(new(1, [4] * 4), new(2, [4] * 4)), copies=copies, steps=steps))
    assert [failure.slot for failure in result.failures] == [1, 2]


def test_a_logits_processor_that_fails_after_a_token_ends_only_its_sequence(
    directory: Path, good_output: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(make_runner(directory))
    healthy = driver.add(0, GOOD)
    driver.add(1, GOOD[:9], sampling=SamplingParams(max_tokens=9, presence_penalty=1.0))

    def broken(*_: object) -> None:
        raise RuntimeError("no such state")

    monkeypatch.setattr(Penalties, "update", broken)
    driver.run(6, may_fail={1})
    assert "logits processor" in driver.failures[1].message
    assert healthy.output == good_output


def test_seeded_text_continues_after_a_restart(directory: Path) -> None:
    params = SamplingParams(max_tokens=50, temperature=1.2, top_k=50, seed=42)
    driver = Driver(make_runner(directory))
    whole = driver.add(0, GOOD, sampling=params)
    driver.add(1, GOOD[:7], sampling=replace_seed(params, 4))
    driver.run(20)
    driver = Driver(make_runner(directory))
    resumed = driver.add(3, GOOD + whole.output[:9], num_prompt=len(GOOD), sampling=params)
    driver.run(20)
    assert resumed.output[:20] == whole.output[:20]


def test_weights_of_nan_are_refused_at_warm_up(tmp_path: Path) -> None:
    runner = make_runner(make_llama(tmp_path))
    runner._model.norm.weight.fill_(math.nan)
    with pytest.raises(StartupError, match="first forward"):
        runner.warm_up()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(tmp_path: Path, dtype: str) -> None:
    driver = Driver(make_runner(make_llama(tmp_path), dtype=dtype), chunk=11)
    sequence = driver.add(0, GOOD)
    driver.run(6)
    assert not driver.failures
    assert len(sequence.output) == 6


def test_too_few_blocks_for_one_sequence_are_refused_at_start(directory: Path) -> None:
    with pytest.raises(StartupError, match="--max-model-len"):
        make_runner(directory, kv_tokens=3 * 16)


def replace_seed(params: SamplingParams, seed: int) -> SamplingParams:
    return SamplingParams(**_fields(params) | {"seed": seed})


def _fields(struct: object) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error", "lives"), [(RuntimeError, True), (torch.OutOfMemoryError, True), (torch.AcceleratorError, False)]
)
def test_a_device_error_ends_the_engine_and_other_errors_only_the_step(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], lives: bool
) -> None:
    runner = make_runner(directory)
    driver = Driver(runner)
    driver.add(0, GOOD)

    def broken(*_: object) -> None:
        raise error("as it happens")

    monkeypatch.setattr(runner, "_forward", broken)
    if lives:
        driver.step()
        assert "as it happens" in driver.failures[0].message
    else:
        with pytest.raises(error):
            driver.step()


@pytest.mark.parametrize("kind", ["error", "memory"])
def test_a_fault_injected_into_a_step_changes_no_token(
    directory: Path, good_output: list[int], tmp_path: Path, kind: InjectedFault
) -> None:
    runner = make_runner(directory)
    runner.faults = FaultPoint(tmp_path / "fault")
    driver = Driver(runner)
    sequences = [driver.add(slot, GOOD) for slot in range(3)]
    for _ in range(3):
        arm(tmp_path / "fault", kind)
        driver.step()
        assert not is_armed(tmp_path / "fault")
    driver.run(6)
    assert all(sequence.output == good_output for sequence in sequences)
