"""Tiny random checkpoints of vision-language families, made with transformers: weights, tokenizer, image processor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.fakes.models.checkpoints import CHAT_TEMPLATE, llama_config, text_config

_CONTROL = ("<pad>", "<s>", "</s>")
_TOKENS = {
    "internvl": ("<IMG_CONTEXT>", "<img>", "</img>"),
    "mistral3": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "pixtral": ("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    "gemma3": ("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
    "paddleocr_vl": ("<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>"),
    "llava_next": ("<image>",),
    "llava_onevision": ("<image>",),
}
"""By family: the token that stands for an image row, then those around it."""
IMAGE = len(_CONTROL)
"""Id of the first of them."""
_PLACEHOLDERS = {
    "internvl": "<IMG_CONTEXT>\n",
    "mistral3": "[IMG]",
    "pixtral": "[IMG]",
    "gemma3": "<start_of_image>",
    "paddleocr_vl": "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    "llava_next": "<image>\n",
    "llava_onevision": "<image>\n",
}
"""What the chat template writes for a picture."""
_PINPOINTS = [[28, 56], [56, 28], [56, 56]]
_PROCESSORS: dict[str, dict[str, Any]] = {
    "internvl": {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 56, "width": 56},
        "max_patches": 4,
    },
    "mistral3": {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 112}},
    "pixtral": {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 56}},
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}},
    "paddleocr_vl": {
        "image_processor_type": "PaddleOCRVLImageProcessor",
        "size": {"shortest_edge": 2 * 28 * 28, "longest_edge": 12 * 28 * 28},
        "patch_size": 14,
        "merge_size": 2,
    },
    "llava_next": {
        "image_processor_type": "LlavaNextImageProcessor",
        "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
        "image_grid_pinpoints": _PINPOINTS,
    },
    "llava_onevision": {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": 28, "width": 28},
        "image_grid_pinpoints": _PINPOINTS,
    },
}
"""preprocessor_config.json: small pictures, so that prompts stay short."""
_SIGLIP = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "initializer_range": 0.2,
    "vision_use_head": False,
}


def tokenizer(special: Sequence[str]) -> transformers.PreTrainedTokenizerFast:
    """One token per byte after the special tokens; two and three newlines are tokens too."""
    tokens = [*_CONTROL, *special]
    vocab = {token: index for index, token in enumerate(tokens)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[symbol] = len(vocab)
    for newlines in ("ĊĊ", "ĊĊĊ"):
        vocab[newlines] = len(vocab)
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[("Ċ", "Ċ"), ("ĊĊ", "Ċ")]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(tokens)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>", extra_special_tokens=list(special)
    )


def _text(family: str, vocab_size: int, **changes: Any) -> dict[str, Any]:
    shape = llama_config().to_dict()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    more = ("max_position_embeddings", "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id")
    return {name: shape[name] for name in names + more} | {"model_type": family, "vocab_size": vocab_size} | changes


def _internvl(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    vision = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": [56, 56],
        "patch_size": [14, 14],
        "initializer_range": 0.2,
        "attention_bias": True,
    }
    return transformers.InternVLConfig(
        vision_config=vision | changes, text_config=_text("qwen3", vocab_size, head_dim=16), image_token_id=IMAGE
    )


def _mistral3(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    vision = {
        "model_type": "pixtral",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 112,
        "patch_size": 14,
        "initializer_range": 0.2,
        "head_dim": 24,
    }
    text = _text("mistral", vocab_size, head_dim=16, sliding_window=None)
    return transformers.Mistral3Config(vision_config=vision, text_config=text, image_token_index=IMAGE, **changes)


def _pixtral(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    like = _mistral3(vocab_size)
    return transformers.LlavaConfig(
        vision_config=like.vision_config.to_dict(),
        text_config=like.text_config.to_dict(),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **changes,
    )


def _gemma3(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    text = _text(
        "gemma3_text",
        vocab_size,
        num_hidden_layers=6,
        sliding_window=8,
        head_dim=16,
        query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    tokens = {"image_token_index": IMAGE, "boi_token_index": IMAGE + 1, "eoi_token_index": IMAGE + 2}
    vision = _SIGLIP | {"model_type": "siglip_vision_model"}
    shape = {"mm_tokens_per_image": 4} | tokens | changes
    return transformers.Gemma3Config(vision_config=vision, text_config=text, **shape)


def _paddleocr_vl(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    text = _text("paddleocr_vl_text", vocab_size, head_dim=32, num_attention_heads=4, num_key_value_heads=2)
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 6, 6]}
    vision = {name: value for name, value in _SIGLIP.items() if name != "vision_use_head"}
    tokens = {"image_token_id": IMAGE, "vision_start_token_id": IMAGE + 1, "vision_end_token_id": IMAGE + 2}
    return transformers.PaddleOCRVLConfig(vision_config=vision, text_config=text, **(tokens | changes))


def _llava_next(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    vision = {name: value for name, value in _SIGLIP.items() if name != "vision_use_head"}
    return transformers.LlavaNextConfig(
        vision_config=vision | {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 7},
        text_config=_text("mistral", vocab_size, sliding_window=None),
        image_token_index=IMAGE,
        image_grid_pinpoints=_PINPOINTS,
        **changes,
    )


def _llava_onevision(vocab_size: int, **changes: Any) -> transformers.PreTrainedConfig:
    return transformers.LlavaOnevisionConfig(
        vision_config=_SIGLIP | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 7},
        text_config=_text("qwen2", vocab_size),
        image_token_index=IMAGE,
        image_grid_pinpoints=_PINPOINTS,
        **({"vision_aspect_ratio": "anyres_max_2"} | changes),
    )


_CONFIGS = {
    "internvl": _internvl,
    "mistral3": _mistral3,
    "pixtral": _pixtral,
    "gemma3": _gemma3,
    "paddleocr_vl": _paddleocr_vl,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
}
FAMILIES = tuple(_CONFIGS)


def make_vision(directory: Path, family: str, *, seed: int = 0, text: str | None = None, **changes: Any) -> Path:
    """Write a random model of a family. ``changes`` go into its config, or for InternVL into its vision_config.

    ``text``: the family of its language model, if another than usual here.
    """
    torch.manual_seed(seed)
    words = tokenizer(_TOKENS[family])
    config = _CONFIGS[family](len(words), **changes)
    if text is not None:
        config.text_config = text_config(text, vocab_size=len(words))
    model = transformers.AutoModelForImageTextToText.from_config(config)
    randomise(model)
    model.save_pretrained(directory)
    words.chat_template = CHAT_TEMPLATE.replace("<image>", "{{ " + repr(_PLACEHOLDERS[family]) + " }}")
    words.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(_PROCESSORS[family]))
    return directory


def make_llava_next_with_processor(directory: Path) -> Path:
    """A LLaVA-NeXT as transformers saves it, for its own modules: its processor counts the tokens of pictures."""
    make_vision(directory, "llava_next")
    words = transformers.AutoTokenizer.from_pretrained(directory)
    transformers.LlavaNextProcessor(
        image_processor=transformers.LlavaNextImageProcessorPil.from_pretrained(directory),
        tokenizer=words,
        patch_size=7,
        vision_feature_select_strategy="default",
        chat_template=words.chat_template,
        num_additional_image_tokens=1,
    ).save_pretrained(directory)
    return directory


def make_paddleocr_with_processor(directory: Path) -> Path:
    """A PaddleOCR-VL for transformers' own modules, with positions of three axes."""
    make_vision(directory, "paddleocr_vl")
    words = transformers.AutoTokenizer.from_pretrained(directory)
    named = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words.backend_tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": _TOKENS["paddleocr_vl"][0]},
    )
    images = transformers.PaddleOCRVLImageProcessorPil.from_pretrained(directory)
    transformers.PaddleOCRVLProcessor(images, named, chat_template=words.chat_template).save_pretrained(directory)
    return directory


def make_native_internvl(directory: Path, source: Path) -> Path:
    """The checkpoint of ``source``, an InternVL in transformers' format, in its authors' format."""
    shutil.copytree(source, directory)
    config = json.loads((source / "config.json").read_text())
    vision = config["vision_config"]
    native = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "llm_config": config["text_config"] | {"tie_word_embeddings": config["tie_word_embeddings"]},
        "vision_config": {
            "model_type": "intern_vit_6b",
            "qkv_bias": vision["attention_bias"],
            "qk_normalization": vision["use_qk_norm"],
            "image_size": vision["image_size"][0],
            "patch_size": vision["patch_size"][0],
            **{name: vision[name] for name in _SAME_IN_NATIVE},
        },
        "force_image_size": vision["image_size"][0],
        "downsample_ratio": config["downsample_ratio"],
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
    }
    (directory / "config.json").write_text(json.dumps(native))
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text().replace("<IMG_CONTEXT>", "<image>"))
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if ".q_proj." in name and "vision" in name]:
        parts = [tensors.pop(name.replace("q_proj", each)) for each in ("q_proj", "k_proj", "v_proj")]
        tensors[name.replace("q_proj", "qkv")] = torch.cat(parts)
    save_file({_native_name(name): tensor for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def _native_name(name: str) -> str:
    for prefix, replacement in _NATIVE_PREFIXES:
        if name.startswith(prefix):
            name = replacement + name.removeprefix(prefix)
            break
    for part, replacement in (("layer_norm.", "0."), ("linear_1.", "1."), ("linear_2.", "3.")):
        name = name.replace(f"mlp1.{part}", f"mlp1.{replacement}")
    if name.startswith("vision_model."):
        for part, replacement in _NATIVE_PARTS.items():
            name = name.replace(part, replacement)
    return name


_SAME_IN_NATIVE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
    *("norm_type", "layer_norm_eps", "num_channels"),
)
_NATIVE_PREFIXES = (
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("model.vision_tower.", "vision_model."),
    ("vision_tower.", "vision_model."),
    *((f"{before}multi_modal_projector.", "mlp1.") for before in ("model.", "")),
)
_NATIVE_PARTS = {
    "encoder.layer.": "encoder.layers.",
    "attention.projection_layer.": "attn.proj.",
    "attention.": "attn.",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_": "ls",
    "cls_token": "class_embedding",
    "position_embeddings": "position_embedding",
    "patch_embeddings.projection": "patch_embedding",
}


def randomise(model: torch.nn.Module) -> None:
    """Draw small parameters and those that start as zeros or ones, so that none of them can be left out unseen."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or parameter.std() < 0.05:
                parameter.add_(0.2 * torch.randn_like(parameter))
