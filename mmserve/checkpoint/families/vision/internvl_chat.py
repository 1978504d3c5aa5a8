"""InternVL3 and 3.5 in their authors' format (``InternVLChatModel``), whose code is not in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.added_tokens import added_tokens
from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.internvit import InternVitJson
from mmserve.runtime.errors import StartupError

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The authors' code writes conversations itself; the tokenizer's template may be that of the language model alone."""


class NativeVisionJson(InternVitJson, kw_only=True):
    """The names and defaults of InternVisionConfig."""

    hidden_size: int = 3200
    intermediate_size: int = 12800
    num_hidden_layers: int = 48
    num_attention_heads: int = 25
    attention_bias: bool = msgspec.field(name="qkv_bias", default=False)
    use_qk_norm: bool = msgspec.field(name="qk_normalization", default=True)
    norm_type: str = "rms_norm"
    image_size: int | list[int] = 224


class NativeJson(MultimodalJson, kw_only=True):
    """The files do not give the token's id; the tokenizer does."""

    default_text: ClassVar[str] = "qwen2"
    default_token_id: ClassVar[int] = 151667
    default_token: ClassVar[str] = "<IMG_CONTEXT>"

    text_config: dict[str, object] | None = msgspec.field(name="llm_config", default=None)
    vision_config: NativeVisionJson = msgspec.field(default_factory=NativeVisionJson)
    tie_word_embeddings: bool = False
    downsample_ratio: float = 0.5
    force_image_size: int | None = None
    ps_version: str = "v1"
    select_layer: int = -1


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, NativeJson)
    vision = config.vision_config.spec(
        downsample_ratio=config.downsample_ratio,
        qk_norm_eps=config.vision_config.layer_norm_eps,
        fused_qkv=True,
        projector_activation="gelu",
    )
    if config.select_layer != -1 or config.ps_version != "v2":
        raise StartupError("only select_layer -1 with ps_version 'v2' is supported for InternVL")
    if config.force_image_size not in (None, vision.image_size):
        raise StartupError(f"force_image_size {config.force_image_size} is not the tower's {vision.image_size}")
    ids = {text: token for token, text in added_tokens(directory).items()}
    config.image_token_id = ids.get(config.default_token, config.default_token_id)
    return replace(config.model_spec(directory, "internvl_chat", config.text(), vision), chat_template=_CHAT_TEMPLATE)
