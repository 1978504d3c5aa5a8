"""What a picture becomes in a prompt, found by asking the checkpoint's processor."""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from PIL import Image

from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.model_backend.models.generic.architecture import Architecture
from mmserve.runtime.errors import StartupError

_SIZES = ((640, 480), (480, 640), (64, 64), (1024, 256), (300, 2000))
"""(width, height) of the pictures that are tried."""
_KINDS_OF_TOKENS = ("token_type_ids", "mm_token_type_ids")
"""Arguments by which attention or positions depend on what is a picture: attention over whole images, M-RoPE."""


class PictureToken(NamedTuple):
    """What stands for one row of a picture."""

    id: int
    text: str


def pictures_of(directory: Path, architecture: Architecture, base_class: Any) -> tuple[GenericVision, PictureToken]:
    """Raises StartupError if pictures cannot be served. ``base_class``: of the model without its head."""
    name = architecture.model_class.__name__
    if not hasattr(base_class, "get_image_features"):
        raise StartupError(f"{name} does not compute the rows of a picture by themselves")
    arguments = inspect.signature(inspect.unwrap(base_class.forward)).parameters
    if found := [argument for argument in _KINDS_OF_TOKENS if argument in arguments]:
        raise StartupError(f"{name} needs {found[0]}: its attention or its positions depend on what is a picture")
    processor = transformers.AutoProcessor.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    if not hasattr(processor, "_get_num_multimodal_tokens"):
        raise StartupError(f"{type(processor).__name__} cannot count the tokens of a picture")
    token_id = architecture.config.image_token_id
    token = PictureToken(token_id, processor.tokenizer.convert_ids_to_tokens(token_id))
    expansions = {_expansion(processor, token_id, *size) for size in _SIZES}
    if len(expansions) > 1:
        raise StartupError(
            f"the tokens of a picture depend on its size, which only families of mmserve can have ({name})"
        )
    ((text, rows),) = expansions
    return _vision_spec(architecture.config.vision_config, processor.image_token, text, rows), token


def _expansion(processor: Any, token_id: int, width: int, height: int) -> tuple[str, tuple[int, ...]]:
    """The text with one row token a run, and the rows of each run."""
    picture = Image.new("RGB", (width, height))
    ids = processor(text=[processor.image_token], images=[picture], add_special_tokens=False)["input_ids"][0]
    runs = [(is_row, list(group)) for is_row, group in groupby(ids, lambda token: token == token_id)]
    rows = tuple(len(group) for is_row, group in runs if is_row)
    (counted,) = processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"]
    if sum(rows) != counted:
        raise StartupError(f"{type(processor).__name__} counts {counted} tokens of a picture and writes {sum(rows)}")
    text = processor.tokenizer.decode([token for is_row, group in runs for token in (group[:1] if is_row else group)])
    return text, rows


def _vision_spec(config: Any, placeholder: str, text: str, rows: tuple[int, ...]) -> GenericVision:
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
        patches_per_row=max(1, -(-patches // sum(rows))),
        placeholder=placeholder,
        expansion=text,
        rows=rows,
    )
