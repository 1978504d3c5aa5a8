"""What the config.json files of vision-language families have in common."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.added_tokens import added_tokens
from mmserve.checkpoint.config.stop_tokens import ends_of_text
from mmserve.checkpoint.config.text_config import TextJson
from mmserve.checkpoint.registry import text_config
from mmserve.checkpoint.spec import ModelSpec, VisionSpec


class MultimodalJson(msgspec.Struct, kw_only=True):
    """A family adds its ``vision_config`` and options, and overrides defaults.

    ``text_config`` stays raw, because its ``model_type`` decides its struct.
    """

    default_text: ClassVar[str] = "llama"
    """Family of a text model that does not say its own."""
    default_token_id: ClassVar[int] = 32000
    default_token: ClassVar[str] = "<image>"
    """Of the token that stands for an image row, where the files do not give its id or text."""

    text_config: dict[str, object] | None = None
    image_token_id: int | None = None
    image_token_index: int | None = None
    tie_word_embeddings: bool = True
    dtype: str | None = None
    torch_dtype: str | None = None

    def text(self) -> TextJson:
        """Raises StartupError for a text model that is not supported."""
        return text_config(self.text_config or {}, default=self.default_text)

    def token_id(self) -> int:
        given = (self.image_token_index, self.image_token_id, self.default_token_id)
        return next(token for token in given if token is not None)

    def model_spec(self, directory: Path, family: str, text: TextJson, vision: VisionSpec) -> ModelSpec:
        """Raises StartupError for what is not supported."""
        spec = text.text_spec()
        bos_id, eos_ids = ends_of_text(directory, text)
        dtypes = (self.dtype, self.torch_dtype, text.dtype, text.torch_dtype)
        return ModelSpec(
            family=family,
            path=str(directory),
            text=replace(spec, tie_embeddings=spec.tie_embeddings or self.tie_word_embeddings),
            vision=vision,
            image_token_id=self.token_id(),
            image_token=added_tokens(directory).get(self.token_id(), self.default_token),
            eos_token_ids=eos_ids,
            bos_token_id=bos_id,
            checkpoint_dtype=next((dtype for dtype in dtypes if dtype), "float32"),
        )
