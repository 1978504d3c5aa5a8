"""Positions with three axes are those of transformers, whole and in chunks, for prompts of several images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from msgspec.structs import replace
from transformers.models.paddleocr_vl.modeling_paddleocr_vl import PaddleOCRVLModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeModel

from mmserve.messages.media import Handle, MediaSpan
from mmserve.model_backend.models.positions import INDICES, SlotPositions, grid_positions, sequential_positions
from tests.fakes.models.image_processors import family_processor

Grid = tuple[int, int, int]
PROMPTS: list[list[int | Grid]] = [
    [5],
    [3, (1, 2, 3), 4],
    [(1, 1, 1), 2],
    [2, (1, 5, 2), 1, (1, 3, 3)],
    [1, (1, 2, 2), 3, (1, 1, 7), 1, (1, 6, 1), 2, (1, 4, 4), 9],
]
"""Lengths of texts, and grids of images."""
MODELS = {
    Qwen2VLModel: "qwen2_5_vl",
    Qwen2_5_VLModel: "qwen2_5_vl",
    Qwen3VLModel: "qwen3_vl",
    Qwen3VLMoeModel: "qwen3_vl",
    PaddleOCRVLModel: "paddleocr_vl",
}
"""Classes of transformers, and whose image processor they have."""


def spans_of(prompt: Sequence[int | Grid]) -> tuple[list[MediaSpan], int]:
    """The prompt's spans and its length."""
    spans, length = [], 0
    for index, part in enumerate(prompt):
        if isinstance(part, int):
            length += part
            continue
        tokens = part[0] * part[1] * part[2]
        spans.append(
            MediaSpan(
                start=length,
                num_tokens=tokens,
                item_id=index,
                data=None,
                embed=Handle(1, 0, 0),
                media_index=index,
                grid=part,
            )
        )
        length += tokens
    return spans, length


def positions_of(spans: Sequence[MediaSpan], chunks: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """[3, T] of the chunks (start, count) of one sequence."""
    slots = SlotPositions(grid_positions, 4)
    slots.enter(2, spans)
    starts, counts = (np.array(values) for values in zip(*chunks, strict=True))
    indices = np.concatenate([np.arange(start, start + count) for start, count in chunks])
    found = slots.of_rows(np.full(len(chunks), 2), starts, counts, indices)
    return np.broadcast_to(found, (3, found.shape[1]))


def rope_index(model: Any, spans: Sequence[MediaSpan], length: int) -> tuple[list[list[int]], int]:
    """Positions [3, length] of a model class of transformers, and the shift of what follows."""
    kinds = torch.zeros(1, length, dtype=torch.int64)
    for span in spans:
        kinds[0, span.start : span.start + span.num_tokens] = 1
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    merged = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    merged.get_vision_position_ids = lambda *args, **kwargs: model.get_vision_position_ids(merged, *args, **kwargs)
    grids = torch.tensor([[1, 2 * span.grid[1], 2 * span.grid[2]] for span in spans]).reshape(-1, 3)
    positions, shift = model.get_rope_index(merged, kinds, kinds, grids)
    return positions[:, 0].tolist(), int(shift)


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_positions_equal_those_of_transformers(model: Any, prompt: list[int | Grid]) -> None:
    spans, length = spans_of(prompt)
    expected, shift = rope_index(model, spans, length)
    found = positions_of(spans, [(0, length), (length, 1), (length + 7, 1)])
    assert found[:, :length].tolist() == expected
    assert found[:, length:].tolist() == [[length + shift, length + 7 + shift]] * 3


@pytest.mark.parametrize("sizes", [[], [(640, 480)], [(100, 37), (37, 100)], [(224, 224), (300, 50), (28, 60)]])
@pytest.mark.parametrize("model", MODELS)
def test_positions_of_pictures_of_several_sizes(tmp_path: Path, model: Any, sizes: list[tuple[int, int]]) -> None:
    """From a picture's size to the positions of its tokens."""
    processor, prompt = family_processor(MODELS[model], tmp_path), list[int | Grid]([4])
    for index, size in enumerate(sizes):
        [run] = processor.expand(*size).runs
        prompt += [run.grid, 1 + index]
    spans, length = spans_of(prompt)
    expected, shift = rope_index(model, spans, length)
    assert positions_of(spans, [(0, length)]).tolist() == expected
    assert positions_of(spans, [(length, 1)]).tolist() == [[length + shift]] * 3


@pytest.mark.parametrize("size", [1, 4, 7])
def test_chunks_have_the_positions_of_the_whole_prompt(size: int) -> None:
    spans, length = spans_of(PROMPTS[-1])
    whole = positions_of(spans, [(0, length)])
    for start in range(0, length, size):
        count = min(size, length - start)
        assert positions_of(spans, [(start, count)]).tolist() == whole[:, start : start + count].tolist()


def test_a_video_advances_by_the_larger_side_of_its_frames() -> None:
    spans, length = spans_of([1, (3, 1, 2), 1])
    found = positions_of(spans, [(0, length)])
    assert found[0].tolist() == [0, 1, 1, 2, 2, 3, 3, 3]
    assert found[2].tolist() == [0, 1, 2, 1, 2, 1, 2, 3]


def test_a_step_has_rows_of_several_sequences_and_three_axes_only_if_one_is_within_images() -> None:
    slots = SlotPositions(grid_positions, 3)
    spans, length = spans_of([2, (1, 2, 2), 1])
    slots.enter(0, spans)
    slots.enter(1, [])
    slots.enter(2, spans)
    decoding = slots.of_rows(np.array([2, 1]), np.array([length, 4]), np.array([1, 1]), np.array([length, 4]))
    assert decoding.tolist() == [[length - 2, 4]]
    starts, counts = np.array([4, length, 3]), np.array([1, 1, 3])
    mixed = slots.of_rows(np.array([1, 2, 0]), starts, counts, np.array([4, length, 3, 4, 5]))
    assert mixed.tolist() == [[4, length - 2, 2, 2, 2], [4, length - 2, 2, 3, 3], [4, length - 2, 3, 2, 3]]
    before_the_image = slots.of_rows(np.array([2]), np.array([0]), np.array([2]), np.array([0, 1]))
    assert before_the_image.tolist() == [[0, 1]]
    slots.enter(0, [])
    assert slots.of_rows(np.array([0]), np.array([3]), np.array([2]), np.array([3, 4])).tolist() == [[3, 4]]


def test_one_axis_counts_tokens() -> None:
    spans, _ = spans_of(PROMPTS[-1])
    assert sequential_positions(spans) is INDICES


@pytest.mark.parametrize("grid", [(1, 2, 3), (0, 2, 2), (-1, -2, 2)])
def test_a_grid_that_is_not_that_of_the_tokens_is_refused(grid: Grid) -> None:
    spans, _ = spans_of([1, (1, 2, 2)])
    with pytest.raises(ValueError, match="grid"):
        grid_positions([replace(spans[0], grid=grid)])
