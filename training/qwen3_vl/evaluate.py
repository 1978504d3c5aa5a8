"""Examines the small Qwen3-VL on held-out pictures of many sizes, through a server, through transformers, or both.

With ``--mistakes``, transformers answers once more with each mistake of an implementation: every one must cost answers.

    python -m training.qwen3_vl.evaluate --base-url http://127.0.0.1:8000/v1
    python -m training.qwen3_vl.evaluate --transformers training/qwen3_vl/checkpoint --mistakes --longest 2
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from torch import Tensor
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from training.exam import ask as exam
from training.exam import report
from training.exam.sets import Answer, exact
from training.qwen3_vl.questions import HELD_OUT, samples
from training.qwen3_vl.several import questions as several
from training.qwen3_vl.shape import MERGE
from training.sample import Sample

KINDS = (*HELD_OUT, *several.HELD_OUT)
LONGEST_TOKENS = 32
PICTURE = "<image>"
Mistake = Callable[[], AbstractContextManager[object]]


def inputs_of(directory: Path) -> Callable[[Sample], dict[str, Any]]:
    """What ``generate`` takes, by sample. The model's own processor needs torchvision; its parts are used instead."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(directory)

    def inputs(sample: Sample) -> dict[str, Any]:
        text = tokenizer.apply_chat_template(sample.messages, add_generation_prompt=True, tokenize=False)
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in sample.images]
        found = dict(processor(images, return_tensors="pt"))
        for grid in found["image_grid_thw"].tolist():
            text = text.replace(PICTURE, "<row>" * (prod(grid) // processor.merge_size**2), 1)
        text = text.replace("<row>", PICTURE)
        found |= dict(tokenizer(text, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False))
        return found | {"mm_token_type_ids": (found["input_ids"] == tokenizer.convert_tokens_to_ids(PICTURE)).int()}

    return inputs


def directory(path: Path) -> exam.Ask:
    """Greedy answers of transformers in float32, one question after the other."""
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    inputs = inputs_of(path)

    @torch.inference_mode()
    def ask(sample: Sample) -> Answer:
        given = inputs(sample)
        said = model.generate(**given, do_sample=False, max_new_tokens=LONGEST_TOKENS)
        said = said[0, given["input_ids"].shape[1] :]
        end = bool((said == tokenizer.eos_token_id).any())
        return Answer(tokenizer.decode(said, skip_special_tokens=True), end)

    return lambda asked: map(ask, asked)


def axes_swapped() -> AbstractContextManager[object]:
    """The text model takes rows of a picture for columns."""
    right: Callable[..., Tensor] = qwen3_vl.Qwen3VLModel.get_vision_position_ids

    def wrong(*args: Any, **options: Any) -> Tensor:
        return right(*args, **options)[[0, 2, 1]]

    return mock.patch.object(qwen3_vl.Qwen3VLModel, "get_vision_position_ids", wrong)


def of_tower(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> AbstractContextManager[object]:
    """The tower gets other patches (N, numbers of a patch) or grids (pictures, 3)."""
    right = qwen3_vl.Qwen3VLVisionModel.forward

    def wrong(self: Any, hidden_states: Tensor, grid_thw: Tensor, **options: Any) -> Any:
        return right(self, *change(hidden_states, grid_thw), **options)

    return mock.patch.object(qwen3_vl.Qwen3VLVisionModel, "forward", wrong)


def grid_transposed() -> AbstractContextManager[object]:
    """The tower takes a grid's rows for its columns."""
    return of_tower(lambda patches, grids: (patches, grids[:, [0, 2, 1]]))


def patches_by_line() -> AbstractContextManager[object]:
    """The patches stand line by line instead of cell by cell."""

    def change(patches: Tensor, grids: Tensor) -> tuple[Tensor, Tensor]:
        parts = patches.split(grids.prod(1).tolist())
        lines = [
            part.unflatten(0, (rows // MERGE, columns // MERGE, MERGE, MERGE)).transpose(1, 2).flatten(0, 3)
            for part, (_, rows, columns) in zip(parts, grids.tolist(), strict=True)
        ]
        return torch.cat(lines), grids

    return of_tower(change)


def without_deepstack() -> AbstractContextManager[object]:
    """The further streams are dropped."""
    return mock.patch.object(qwen3_vl.Qwen3VLTextModel, "_deepstack_process", lambda self, hidden, mask, seen: hidden)


def spans_exchanged() -> AbstractContextManager[object]:
    """The last picture's rows stand first, in all streams."""
    right = qwen3_vl.Qwen3VLModel.get_image_features

    def wrong(self: Any, pixel_values: Tensor, image_grid_thw: Tensor, **options: Any) -> Any:
        found = right(self, pixel_values, image_grid_thw, **options)
        found.pooler_output = found.pooler_output[::-1]
        found.deepstack_features = [stream[::-1] for stream in found.deepstack_features]
        return found

    return mock.patch.object(qwen3_vl.Qwen3VLModel, "get_image_features", wrong)


def axes_from_start() -> AbstractContextManager[object]:
    """The rows and columns of every picture count from the start of the prompt."""
    right: Callable[..., Tensor] = qwen3_vl.Qwen3VLModel.get_vision_position_ids

    def wrong(self: Any, start_position: int, *args: Any, **options: Any) -> Tensor:
        found = right(self, start_position, *args, **options)
        found[1:] -= start_position
        return found

    return mock.patch.object(qwen3_vl.Qwen3VLModel, "get_vision_position_ids", wrong)


def positions_by_cells() -> AbstractContextManager[object]:
    """Positions behind a picture go on by its number of cells instead of its longer side."""
    right = qwen3_vl.Qwen3VLModel.get_rope_index

    def wrong(self: Any, input_ids: Tensor, mm_token_type_ids: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        positions, deltas = right(self, input_ids, mm_token_type_ids, **options)
        sides = options["image_grid_thw"][:, 1:] // MERGE
        more = F.pad((sides.prod(1) - sides.amax(1)).cumsum(0), (1, 0))
        pictures_before = (mm_token_type_ids[0].diff() < 0).cumsum(0)
        positions[..., 1:] += more[pictures_before]
        return positions, deltas + more[-1]

    return mock.patch.object(qwen3_vl.Qwen3VLModel, "get_rope_index", wrong)


MISTAKES: dict[str, Mistake] = {
    "axes swapped": axes_swapped,
    "grid transposed": grid_transposed,
    "patches by line": patches_by_line,
    "no DeepStack": without_deepstack,
    "spans exchanged": spans_exchanged,
    "axes from the start": axes_from_start,
    "positions by cells": positions_by_cells,
}


def wrongly(ask_all: exam.Ask, mistake: Mistake, asked: list[Sample]) -> Iterator[Answer]:
    """The answers with a mistake."""
    with mistake():
        yield from ask_all(asked)


def questions(kinds: Sequence[str], each: int, seed: int, longest: float) -> list[Sample]:
    """Held-out questions on one picture, then those on several."""
    one, more = ([kind for kind in kinds if kind in known] for known in (HELD_OUT, several.HELD_OUT))
    return [*samples(each * len(one), seed, one, longest), *several.samples(each * len(more), seed, more)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", help="of a running server, for example http://127.0.0.1:8000/v1")
    parser.add_argument("--transformers", type=Path, metavar="DIR", help="checkpoint directory to ask directly")
    parser.add_argument("--mistakes", action="store_true", help="also through transformers with mistakes")
    parser.add_argument("--each", type=int, default=100, help="questions of a kind")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--longest", type=float, default=1.0, help="least ratio of a single picture's longer side")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ways: dict[str, exam.Ask] = {}
    if options.base_url:
        ways["server"] = exam.server(options.base_url, None, "none", 8)
    if options.transformers:
        ways["transformers"] = direct = directory(options.transformers)
        if options.mistakes:
            ways |= {name: partial(wrongly, direct, mistake) for name, mistake in MISTAKES.items()}
    if not ways:
        parser.error("nothing to ask: give --base-url, --transformers or both")
    asked = questions(options.kinds, options.each, options.seed, options.longest)
    rows: list[report.Row] = [{"kind": sample.kind, "expected": sample.answer} for sample in asked]
    for way, ask_all in ways.items():
        for row, sample, answer in zip(rows, asked, ask_all(asked), strict=True):
            row[way] = {"text": answer.text.strip(), "ended": answer.ended, "right": exact(sample, answer)}
    print(report.table(rows, list(ways)))


if __name__ == "__main__":
    main()
