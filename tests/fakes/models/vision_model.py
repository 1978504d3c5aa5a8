"""A vision-language checkpoint with some pictures: the token ids of prompts, and the inputs of transformers' models."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from mmserve.checkpoint.load import load
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.processors.interface import Expansion
from mmserve.processors.registry import processor_for
from tests.fakes.models.vision_checkpoints import IMAGE
from tests.fakes.pictures.tower_inputs import read_by_tower

_TOKEN_TYPES = {"paddleocr_vl": "mm_token_type_ids", "gemma3": "token_type_ids"}
"""Of families whose models must be told which tokens are of pictures."""


class VisionModel:
    """``family``: of ``vision_checkpoints``, or "llava", "idefics3" or "smolvlm". Pictures are numbered from 0 on."""

    def __init__(self, family: str, directory: Path, files: Sequence[bytes]) -> None:
        self.family, self.directory = family, directory
        self.spec, self.sizes = load(directory), [Image.open(io.BytesIO(file)).size for file in files]
        processor = processor_for(self.spec)
        assert processor is not None
        self.placeholder = processor.placeholder
        self.processor, self._files = processor, files

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self.directory)

    def views(self, picture: int, count: int) -> ViewTensors:
        """Of a picture of a prompt with ``count`` pictures."""
        return read_by_tower(self.processor, [self.processor.among(count).views(self._files[picture])])[0]

    def expansion(self, picture: int, count: int) -> Expansion:
        """Of a picture of a prompt with ``count`` pictures."""
        return self.processor.among(count).expand(*self.sizes[picture])

    def ids(self, text: str, pictures: Sequence[int], count: int | None = None) -> list[int]:
        """Of a text with placeholders, with one image token for each row. ``count``: pictures of the prompt, if it has
        more than the text."""
        first, *rest = text.split(self.placeholder)
        expansions = [self.expansion(each, count or len(pictures)) for each in pictures]
        text = first + "".join(f"{image.text}{after}" for image, after in zip(expansions, rest, strict=True))
        runs = iter([run for expansion in expansions for run in expansion.runs])
        ids: list[int] = []
        for token in self.tokenizer(text, add_special_tokens=False)["input_ids"]:
            ids += [IMAGE] * next(runs).rows if token == IMAGE else [token]
        return ids

    def inputs(self, ids: Sequence[int], pictures: Sequence[int]) -> dict[str, Any]:
        """What ``generate`` of transformers takes."""
        prompt = torch.tensor([ids])
        found = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
        if self.family in _TOKEN_TYPES:
            found[_TOKEN_TYPES[self.family]] = (prompt == IMAGE).int()
        return found | (_INPUTS[self.family](self, pictures) if pictures else {})


def processed(directory: Path, chat: list[dict[str, Any]], images: list[Image.Image], *, family: str) -> dict[str, Any]:
    """What ``generate`` takes for a chat with these pictures."""
    files = [io.BytesIO() for _ in images]
    for image, file in zip(images, files, strict=True):
        image.save(file, "PNG")
    model, pictures = VisionModel(family, directory, [file.getvalue() for file in files]), range(len(files))
    text = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return model.inputs(model.ids(text, pictures), pictures)


def _tiles(model: VisionModel, pictures: Sequence[int]) -> dict[str, Any]:
    return {"pixel_values": torch.cat([view.values for view in _views(model, pictures)])}


def _padded(model: VisionModel, pictures: Sequence[int]) -> dict[str, Any]:
    """Pictures from their patches, in a batch of the largest sides."""
    views = _views(model, pictures)
    sizes = torch.tensor([[14 * rows, 14 * columns] for view in views for _, rows, columns in view.grids.tolist()])
    pixels = torch.zeros(len(views), 3, *sizes.amax(dim=0).tolist())
    for index, (view, (height, width)) in enumerate(zip(views, sizes.tolist(), strict=True)):
        patches = view.values.view(height // 14, width // 14, 3, 14, 14).permute(2, 0, 3, 1, 4)
        pixels[index, :, :height, :width] = patches.reshape(3, height, width)
    return {"pixel_values": pixels, "image_sizes": sizes}


def _patches(model: VisionModel, pictures: Sequence[int]) -> dict[str, Any]:
    views = _views(model, pictures)
    values = torch.cat([view.values for view in views]).view(-1, 3, 14, 14)
    return {"pixel_values": values, "image_grid_thw": torch.cat([view.grids for view in views]).long()}


def _anyres(model: VisionModel, pictures: Sequence[int]) -> dict[str, Any]:
    """Tiles of all pictures in a batch of the largest number."""
    tiles = [view.values for view in _views(model, pictures)]
    pixels = torch.nn.utils.rnn.pad_sequence(tiles, batch_first=True)
    found = {"pixel_values": pixels, "image_sizes": torch.tensor([model.sizes[each][::-1] for each in pictures])}
    return found | ({"batch_num_images": torch.tensor([len(pictures)])} if model.family == "llava_onevision" else {})


def _views(model: VisionModel, pictures: Sequence[int]) -> list[ViewTensors]:
    return [model.views(each, len(pictures)) for each in pictures]


def _tiles_of_all(model: VisionModel, pictures: Sequence[int]) -> dict[str, Any]:
    """[1, tiles, 3, side, side]: as the pictures of one prompt."""
    return {"pixel_values": torch.cat([view.values for view in _views(model, pictures)])[None]}


_INPUTS = {
    "idefics3": _tiles_of_all,
    "smolvlm": _tiles_of_all,
    "llava": _tiles,
    "internvl": _tiles,
    "mistral3": _padded,
    "pixtral": _padded,
    "gemma3": _tiles,
    "paddleocr_vl": _patches,
    "llava_next": _anyres,
    "llava_onevision": _anyres,
}
"""How transformers' models take pictures."""
