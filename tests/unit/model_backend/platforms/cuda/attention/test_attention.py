"""In Triton's interpreter the attention kernels compute what float64 does, and a row's bits depend on its sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmserve.model_backend.attention.interface import Mask
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from tests.fakes.devices.attention import TOLERANCES, Problem, Step
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
TILING = AttentionTiling(Tiling(16, 16, 4, 1), Tiling(32, 16, 4, 1), short_tokens=5, split_tokens=32, segment_tokens=32)
"""Sizes so small that short sequences have several of everything."""
DECODES = ((69, 1), (32, 1), (31, 1), (0, 1), (-1, 1))
CHUNKS = ((33, 1), (0, 17), (40, 21))
IMAGES = ((3, 20), (25, 26), (28, 39))


def attention(problem: Problem, num_programs: int = 3) -> TritonAttention:
    return TritonAttention(problem.spec, torch.device("cpu"), TILING, num_programs)


@pytest.mark.parametrize(
    "problem",
    [
        Problem((*DECODES, (62, 5), (0, 3)), kv_heads=2),
        Problem(CHUNKS, group=3, kv_heads=2),
        Problem(DECODES, group=4, dim=64, dtype=torch.bfloat16),
        Problem((*CHUNKS, (30, 5)), group=7, dim=48, dtype=torch.float16),
        Problem(CHUNKS, dim=80, dtype=torch.bfloat16, block_tokens=32),
        Problem(((40, 1), (0, 9)), group=16, kv_heads=1),
        Problem(((40, 1), (0, 18)), group=2, kv_heads=1, dim=128, dtype=torch.float16),
        Problem(((40, 1), (0, 18)), group=2, kv_heads=1, dim=256, dtype=torch.bfloat16),
        Problem(CHUNKS, group=2, masks=(Mask(20),), soft_cap=0.7),
        Problem((*CHUNKS, (60, 4)), group=2, dim=32, dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn),
    ],
    ids=str,
)
def test_results_are_those_of_float64(problem: Problem) -> None:
    step = Step(problem)
    assert step.error(step.run(attention(problem))) < TOLERANCES[problem.dtype]


@pytest.mark.parametrize("window", [1, 16, 40])
def test_a_window_and_no_window_in_one_model(window: int) -> None:
    problem = Problem((*DECODES[:2], (30, 34), (62, 5)), group=2, masks=(Mask(), Mask(window)))
    step, backend = Step(problem), attention(problem)
    metadata = backend.builder(problem.limits).build(step.input)
    for mask in problem.masks:
        assert step.error(step.run(backend, mask, metadata), mask) < TOLERANCES[problem.dtype]


@pytest.mark.parametrize("start", [0, 3, 26])
@pytest.mark.parametrize("window", [None, 8])
def test_rows_of_an_image_attend_to_all_of_it_within_the_window(start: int, window: int | None) -> None:
    mask = Mask(window, whole_images=True)
    problem = Problem(((start, 40 - start),), group=2, masks=(mask, Mask(window)), images=IMAGES)
    step, backend = Step(problem), attention(problem)
    for each in problem.masks:
        assert step.error(step.run(backend, each), each) < TOLERANCES[problem.dtype]


def test_a_row_has_the_same_bits_alone_and_in_a_batch_and_with_any_number_of_programs() -> None:
    together = Problem(((69, 1), (40, 1), (0, 18)), group=2)
    expected = Step(together).run(attention(together))
    first = replace(together, chunks=together.chunks[:1])
    assert torch.equal(Step(first).run(attention(first, num_programs=1)), expected[:1])
    assert torch.equal(Step(together).run(attention(together, num_programs=50)), expected)


@pytest.mark.parametrize("window", [None, 20])
def test_a_row_of_a_prompt_has_the_same_bits_whatever_its_chunk(window: int | None) -> None:
    whole = Problem(((0, 45),), group=2, masks=(Mask(window),))
    expected = Step(whole).run(attention(whole))
    for start in (7, 32):
        part = replace(whole, chunks=((start, 45 - start),))
        assert torch.equal(Step(part).run(attention(part)), expected[start:])


@pytest.mark.parametrize("window", [None, 20])
def test_a_row_of_a_draft_has_the_same_bits_as_alone(window: int | None) -> None:
    draft = Problem(((62, 5),), group=7, masks=(Mask(window),))
    expected = Step(draft).run(attention(draft))
    for index, position in enumerate(range(62, 67)):
        row = replace(draft, chunks=((position, 1),), length=67)
        assert torch.equal(Step(row).run(attention(row))[0], expected[index])


def test_a_step_that_needs_more_room_than_any_before() -> None:
    long = Problem(((69, 1), (40, 1)))
    backend = attention(long)
    builder = backend.builder(long.limits)
    builder._record._reserve(8)
    for problem in (replace(long, chunks=((3, 1),)), long, replace(long, chunks=((3, 1),))):
        step = Step(problem)
        out = step.run(backend, metadata=builder.build(step.input))
        assert step.error(out) < TOLERANCES[problem.dtype]
