"""Tiny random checkpoints as real directories, made with transformers: a Llama, and a complete LLaVA."""

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

from mmserve.checkpoint.registry import TEXT

SPECIAL = ("<pad>", "<s>", "</s>", "<image>")
PAD, BOS, EOS, IMAGE = range(len(SPECIAL))
VOCAB = 4 + 256
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


def tokenizer(special: Sequence[str] = SPECIAL, template: str = CHAT_TEMPLATE) -> transformers.PreTrainedTokenizerFast:
    """One token per byte after the special tokens, the first of which are those of padding, begin and end."""
    vocab = {token: index for index, token in enumerate(special)}
    for symbol in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[symbol] = len(vocab)
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(special))
    pad, bos, eos, *others = special
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token=pad, bos_token=bos, eos_token=eos, extra_special_tokens=others
    )
    fast.chat_template = template
    return fast


def llama_config(**changes: Any) -> transformers.LlamaConfig:
    """Two layers, 8 query and 4 KV heads: splits over 1, 2 and 4 ranks."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "tie_word_embeddings": False,
    }
    return transformers.LlamaConfig(**(settings | changes))


_SHARED_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
)


def make_llama(directory: Path, *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Path:
    """Write a random Llama with tokenizer; ``changes`` go into its LlamaConfig."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(llama_config(**changes))
    randomise_small_parameters(model)
    model.to(dtype).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


_TEXT_DETAILS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 21, "head_dim": 16},
    "ministral": {"sliding_window": 21, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 30,
            "llama_4_scaling_beta": 0.8,
        },
    },
    "qwen2": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1]},
    "phi3": {
        "hidden_size": 128,
        "original_max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
            "long_factor": [1.0, 2.0, 3.0, 5.0, 7.0, 9.0],
            "attention_factor": 1.2,
        },
    },
    "ernie4_5": {"head_dim": 16},
    "gemma3_text": {
        "num_hidden_layers": 3,
        "head_dim": 32,
        "query_pre_attn_scalar": 4,
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    # Without a family of mmserve: computed by transformers' modules.
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
    },
    "cohere2": {"sliding_window": 21, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.5},
}
"""By ``model_type``: what the family adds to Llama, so small that short texts show it."""
TEXT_FAMILIES = [family for family in TEXT.values() if family != "llama"]
"""By ``model_type``: those that the tests of text families cover. Llama has tests of its own."""


def text_config(family: str, **changes: Any) -> transformers.PreTrainedConfig:
    """Of a tiny text model."""
    shape = llama_config().to_dict()
    shared = {name: shape[name] for name in _SHARED_SETTINGS}
    return transformers.AutoConfig.for_model(family, **(shared | _TEXT_DETAILS[family] | changes))


def make_text(directory: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a random text model of a family, with tokenizer; ``changes`` go into its config."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(text_config(family, **changes))
    randomise_small_parameters(model)
    model.save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


def make_llava(
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    feature_layer: int = -2,
    strategy: str = "default",
    family: str = "llama",
    text: dict[str, Any] | None = None,
) -> Path:
    """Write a random LLaVA-1.5: 28 x 28 pixels in 16 patches; tokenizer, chat template, image processor included.

    ``family``: of its text; ``text``: changes of that.
    """
    torch.manual_seed(seed)
    vision = transformers.CLIPVisionConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=28,
        patch_size=7,
        projection_dim=32,
        initializer_range=0.2,
        initializer_factor=1.0,
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text_config(family, **(text or {})),
        image_token_id=IMAGE,
        vision_feature_layer=feature_layer,
        vision_feature_select_strategy=strategy,
        image_seq_length=16 + (strategy == "full"),
        tie_word_embeddings=(text or {}).get("tie_word_embeddings", False),
    )
    model = transformers.LlavaForConditionalGeneration(config)
    randomise_small_parameters(model)
    model.to(dtype).save_pretrained(directory)
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    transformers.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer(),
        patch_size=7,
        vision_feature_select_strategy=strategy,
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(directory)
    images.save_pretrained(directory)
    return directory


def rename_weights(directory: Path, *prefixes: tuple[str, str]) -> None:
    """Rewrite the checkpoint's tensor names: the first prefix that fits is replaced."""
    file = directory / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        old, new = next(((old, new) for old, new in prefixes if name.startswith(old)), ("", ""))
        renamed[new + name.removeprefix(old)] = tensor
    save_file(renamed, file, metadata={"format": "pt"})


def in_shards(source: Path, directory: Path, num_shards: int = 3) -> Path:
    """The checkpoint with its tensors spread over several files, so that no part of the model is in one file alone."""
    for file in source.iterdir():
        if file.name != "model.safetensors":
            shutil.copy2(file, directory)
    tensors, weight_map = load_file(source / "model.safetensors"), {}
    for index in range(num_shards):
        shard = f"model-{index + 1:05}-of-{num_shards:05}.safetensors"
        own = sorted(tensors)[index::num_shards]
        save_file({name: tensors[name] for name in own}, directory / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(own, shard))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def randomise_small_parameters(model: torch.nn.Module) -> None:
    """Norms and biases start as ones and zeros; equal values would hide that two of them are mixed up."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def make_vipllava(directory: Path, *, seed: int = 0) -> Path:
    """Write a random VipLLaVA, which has no family in mmserve: its projector reads two layers of the tower."""
    torch.manual_seed(seed)
    vision = transformers.CLIPVisionConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=28,
        patch_size=7,
        projection_dim=32,
        initializer_range=0.2,
        initializer_factor=1.0,
    )
    config = transformers.VipLlavaConfig(
        vision_config=vision,
        text_config=llama_config(),
        image_token_id=IMAGE,
        vision_feature_layer=[-2, 1],
        image_seq_length=16,
        tie_word_embeddings=False,
    )
    model = transformers.VipLlavaForConditionalGeneration(config)
    randomise_small_parameters(model)
    model.save_pretrained(directory)
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    transformers.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer(),
        patch_size=7,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(directory)
    return directory
