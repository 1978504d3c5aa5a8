"""What a picture becomes in a prompt, found by asking the checkpoint's processor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from msgspec.structs import replace
from PIL import Image

from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.messages.media import ExpandedImage, Grid, Size
from mmserve.model_backend.models.generic.architecture import Architecture
from mmserve.model_backend.models.generic.positions import axes_of
from mmserve.runtime.errors import StartupError

_SIZES = ((640, 480), (480, 640), (64, 64), (1024, 256), (300, 2000))
"""(width, height) of the pictures that are tried."""
_SIDES = tuple(round(2 ** (step / 4)) for step in range(53))
"""In pixels, from 1 to 8192, of pictures whose rows are counted to find the most."""
_FEW_SIDES = (28, 256, 2048, 4096)
"""Where each picture has to be processed for that."""


_COUNTS = "_get_num_multimodal_tokens"


class PictureToken(NamedTuple):
    """What stands for one row of a picture."""

    id: int
    text: str


def pictures_of(directory: Path, architecture: Architecture, base: Any) -> tuple[GenericVision, PictureToken]:
    """Raises StartupError if pictures cannot be served. ``base``: the model without its head, and without weights."""
    name = architecture.model_class.__name__
    if not hasattr(base, "get_image_features"):
        raise StartupError(f"{name} does not compute the rows of a picture by themselves")
    axes = axes_of(architecture, base)
    processor = transformers.AutoProcessor.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    token_id = architecture.config.image_token_id
    token = PictureToken(token_id, processor.tokenizer.convert_ids_to_tokens(token_id))
    _check_alone(processor)
    written = {size: _written(processor, token_id, *size) for size in _SIZES}
    rows: tuple[int, ...] = ()
    texts, runs = {text for text, _ in written.values()}, {rows for _, rows in written.values()}
    if len(texts) > 1 or (len(runs) > 1 and {len(rows) for rows in runs} != {1}):
        if axes > 1:
            raise StartupError(f"{name} has positions of {axes} axes and writes other text for pictures of other sizes")
        text, most = "", _most_written(processor, token_id)
    else:
        (text,) = texts
        _check_counts(processor, axes, {size: sum(rows) for size, (_, rows) in written.items()})
        if len(runs) == 1 and axes == 1:
            rows = runs.pop()
        most = sum(rows) or _most_rows(processor, axes)
    spec = _vision_spec(architecture.config.vision_config, processor.image_token, text, rows, most)
    return replace(spec, axes=axes), token


def expanded(processor: Any, vision: GenericVision, token_id: int, width: int, height: int) -> ExpandedImage | None:
    """What a picture of this size becomes; None if the processor refuses the size. ``token_id``: of a row.

    Where the text depends on the size, an empty picture is processed to see it.
    """
    if vision.expansion:
        grid = grid_of(processor, vision.axes, width, height)
        return None if grid is None else ExpandedImage(vision.expansion, (grid,))
    try:
        text, rows = _written(processor, token_id, width, height)
    except (ValueError, ArithmeticError, StartupError):
        return None
    return ExpandedImage(text, tuple((1, 1, count) for count in rows))


def grid_of(processor: Any, axes: int, width: int, height: int) -> Grid | None:
    """Of the rows of a picture of this size, if it is one run; None if the processor refuses the size.

    Where positions follow the grid, an empty picture is processed to see it.
    """
    try:
        if axes > 1:
            return _processed_grid(processor.image_processor, width, height)
        (counted,) = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]
    except (ValueError, ArithmeticError):
        return None
    return (1, 1, int(counted)) if counted > 0 else None


def _processed_grid(image_processor: Any, width: int, height: int) -> Grid:
    found = image_processor(images=[Image.new("RGB", (width, height))], return_tensors="np")
    frames, rows, columns = (int(length) for length in found["image_grid_thw"][0])
    return frames, rows // image_processor.merge_size, columns // image_processor.merge_size


def _written(processor: Any, token_id: int, width: int, height: int) -> tuple[str, tuple[int, ...]]:
    """The text with one row token a run, and the rows of each run. Raises StartupError if the text gives other ids."""
    ids = _ids(processor, [(width, height)])
    runs = [(is_row, list(group)) for is_row, group in groupby(ids, lambda token: token == token_id)]
    folded = [token for is_row, group in runs for token in (group[:1] if is_row else group)]
    text = processor.tokenizer.decode(folded, clean_up_tokenization_spaces=False)
    if processor.tokenizer(text, add_special_tokens=False)["input_ids"] != folded:
        raise StartupError(f"the text that {type(processor).__name__} writes for a picture gives other tokens alone")
    return text, tuple(len(group) for is_row, group in runs if is_row)


def _check_counts(processor: Any, axes: int, rows: Mapping[Size, int]) -> None:
    """Raises StartupError unless the processor counts as many tokens as it writes. ``rows``: those that it writes."""
    name = type(processor).__name__
    if axes == 1 and not hasattr(processor, _COUNTS):
        raise StartupError(f"{name} cannot count the tokens of a picture")
    for size, number in rows.items():
        counted = math.prod(grid_of(processor, axes, *size) or (0,))
        if counted != number:
            raise StartupError(f"{name} counts {counted} tokens of a picture and writes {number}")


def _check_alone(processor: Any) -> None:
    """Raises StartupError if pictures become something else beside other pictures."""
    pair = _SIZES[:2]
    if _ids(processor, pair) != [token for size in pair for token in _ids(processor, [size])]:
        raise StartupError(f"{type(processor).__name__} writes other tokens of a picture beside other pictures")


def _ids(processor: Any, sizes: Sequence[Size]) -> list[int]:
    """Of a prompt that consists of pictures of these sizes."""
    pictures = [Image.new("RGB", size) for size in sizes]
    text = processor.image_token * len(sizes)
    return list(processor(text=[text], images=[pictures], add_special_tokens=False)["input_ids"][0])


def _most_rows(processor: Any, axes: int) -> int:
    """Of pictures with sides of _SIDES. A picture with more is refused."""
    sides = _SIDES if axes == 1 else _FEW_SIDES
    sizes = [(width, height) for width in sides for height in sides]
    return max(math.prod(grid_of(processor, axes, *size) or (0,)) for size in sizes)


def _most_written(processor: Any, token_id: int) -> int:
    """At least the rows of each picture. Processors that count the tokens of a picture count those between rows too."""
    if hasattr(processor, _COUNTS):
        return _most_rows(processor, 1)
    sizes = [(width, height) for width in _FEW_SIDES for height in _FEW_SIDES]
    return max(sum(_written(processor, token_id, *size)[1]) for size in sizes)


def _vision_spec(config: Any, placeholder: str, text: str, rows: tuple[int, ...], max_rows: int) -> GenericVision:
    """The sizes are estimates for memory: keys of the config have no common names."""
    hidden, patch = getattr(config, "hidden_size", 1024), getattr(config, "patch_size", 14)
    patches = (getattr(config, "image_size", patch) // patch) ** 2
    return GenericVision(
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", 4 * hidden),
        num_layers=getattr(config, "num_hidden_layers", 0),
        num_heads=getattr(config, "num_attention_heads", 0),
        patch_size=patch,
        activation=str(getattr(config, "hidden_act", "")),
        layer_norm_eps=0.0,
        patches_per_row=max(1, -(-patches // sum(rows))) if rows else 1,
        placeholder=placeholder,
        expansion=text,
        rows=rows,
        max_rows=max_rows,
    )
