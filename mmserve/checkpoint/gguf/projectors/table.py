"""The kinds of projectors, by ``clip.projector_type``, and what a file of one says."""

from __future__ import annotations

from typing import Any, NamedTuple

from mmserve.checkpoint.gguf.projectors.gemma3 import GEMMA3
from mmserve.checkpoint.gguf.projectors.idefics3 import IDEFICS3
from mmserve.checkpoint.gguf.projectors.internvl import INTERNVL
from mmserve.checkpoint.gguf.projectors.llava import LLAVA
from mmserve.checkpoint.gguf.projectors.names import named
from mmserve.checkpoint.gguf.projectors.pixtral import PIXTRAL
from mmserve.checkpoint.gguf.projectors.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL
from mmserve.checkpoint.gguf.projectors.tower import Tower
from mmserve.checkpoint.gguf.reader import GgufHeader, Metadata
from mmserve.checkpoint.gguf.table import Entry
from mmserve.checkpoint.gguf.tokenizer import GgufTokenizer
from mmserve.runtime.errors import StartupError

PROJECTORS = {
    "mlp": LLAVA,
    "gemma3": GEMMA3,
    "qwen2vl_merger": QWEN2_VL,
    "qwen2.5vl_merger": QWEN2_5_VL,
    "qwen3vl_merger": QWEN3_VL,
    "idefics3": IDEFICS3,
    "internvl": INTERNVL,
    "pixtral": PIXTRAL,
}
_LLAVA = "mlp"
"""Old files do not name their kind."""


class Described(NamedTuple):
    """A projector's file beside a language model's."""

    config: dict[str, Any]
    """config.json of the whole model."""
    settings: dict[str, Any]
    """preprocessor_config.json."""
    entries: list[Entry]
    template: str
    """Chat template in place of one without ``token``."""
    token: str


def describe(header: GgufHeader, architecture: str, text: dict[str, Any], tokenizer: GgufTokenizer) -> Described:
    """``text``: config.json of the language model. Raises StartupError, naming what is wrong."""
    kind, tower = _kind(header.metadata), Tower(header)
    projector = PROJECTORS[kind]
    if architecture not in projector.texts:
        fitting = " and ".join(projector.texts)
        raise StartupError(f"a projector {kind} does not belong to {architecture}, but to {fitting}")
    if (width := projector.output(tower)) != text["hidden_size"]:
        size = text["hidden_size"]
        raise StartupError(f"the projector's rows of {width} do not fit a text model of hidden size {size}")
    id = tokenizer.stand_in(projector.token, projector.spare_token)
    whole = {
        "text_config": text,
        "image_token_id": id,
        "image_token_index": id,
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    names, settings = projector.names(tower), projector.settings(tower)
    config = whole | projector.config(tower, text)
    return Described(config, settings, named(tower, names), projector.template, projector.token)


def _kind(metadata: Metadata) -> str:
    """Raises StartupError with the name of another projector."""
    if (architecture := metadata.get("general.architecture")) != "clip":
        raise StartupError(f"general.architecture {architecture!r} is not that of a projector")
    if metadata.get("clip.has_audio_encoder"):
        raise StartupError("a projector for audio is not supported")
    kind = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    if kind is None and metadata.get("clip.has_llava_projector"):
        return _LLAVA
    if not isinstance(kind, str) or kind not in PROJECTORS:
        raise StartupError(f"clip.projector_type {kind!r} is not supported; supported are: {', '.join(PROJECTORS)}")
    return kind
