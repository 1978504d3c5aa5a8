"""Writes the packaged model: LLaVA-1.5's classic weight names in bfloat16, configuration, tokenizer and processor.

Files are written beside their place and moved there one by one, so that a reader finds each whole.  `--check` loads the
directory with transformers and compares its answers with the training network's.

    python -m training.export --weights runs/joint.pt --out mmserve/packaged/llava --check
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training import tokens
from training.pictures.world import GRID, SIDE
from training.stages import common
from training.stages.models import SHAPE, Eye, Text

PATCH = SIDE // GRID


def vision_config() -> dict[str, Any]:
    """CLIP's part of config.json."""
    width = SHAPE.vision_width
    return {
        "model_type": "clip_vision_model",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "projection_dim": width,
        "num_hidden_layers": SHAPE.vision_layers,
        "num_attention_heads": SHAPE.vision_heads,
        "num_channels": 3,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "initializer_factor": 1.0,
    }


def text_config() -> dict[str, Any]:
    """Llama's part of config.json."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": SHAPE.vocabulary,
        "hidden_size": SHAPE.width,
        "intermediate_size": SHAPE.feed_forward,
        "num_hidden_layers": SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.heads,
        "head_dim": SHAPE.width // SHAPE.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": SHAPE.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": SHAPE.theta},
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": tokens.BOS,
        "eos_token_id": tokens.EOS,
        "pad_token_id": tokens.PAD,
        "dtype": "bfloat16",
    }


def documents() -> dict[str, Any]:
    """Every JSON file of the directory but the tokenizer."""
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "image_token": "<image>"}
    image = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"height": SIDE, "width": SIDE},
        "resample": 3,
        "do_center_crop": False,
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "do_convert_rgb": True,
    }
    config = {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": tokens.IMAGE,
        "image_token_id": tokens.IMAGE,
        "image_seq_length": GRID * GRID,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "bos_token_id": tokens.BOS,
        "eos_token_id": tokens.EOS,
        "pad_token_id": tokens.PAD,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "text_config": text_config(),
        "vision_config": vision_config(),
    }
    return {
        "config.json": config,
        "generation_config.json": {
            "do_sample": False,
            "bos_token_id": tokens.BOS,
            "eos_token_id": tokens.EOS,
            "pad_token_id": tokens.PAD,
        },
        "preprocessor_config.json": image | {"processor_class": "LlavaProcessor"},
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "patch_size": PATCH,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
            "image_token": "<image>",
            "image_processor": image,
        },
        "tokenizer_config.json": names
        | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "LlavaProcessor",
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "padding_side": "left",
            "extra_special_tokens": {"image_token": "<image>"},
        },
    }


def weights(eye: Eye, text: Text) -> dict[str, Tensor]:
    """The checkpoint's tensors in bfloat16; the patch embedding becomes a convolution."""
    out = dict(eye.state_dict()) | {f"language_model.{name}": value for name, value in text.state_dict().items()}
    out[PATCHES] = out[PATCHES].view(-1, 3, PATCH, PATCH)
    return {name: value.to(torch.bfloat16).contiguous() for name, value in out.items()}


PATCHES = "vision_tower.vision_model.embeddings.patch_embedding.weight"
OF_TOKENS = ("model.embed_tokens.weight", "lm_head.weight")


def networks(directory: Path) -> tuple[Eye, Text]:
    """The networks of a checkpoint directory, the other way round; rows of tokens that it does not have stay new."""
    eye, text = Eye(), Text()
    found = {name: value.float() for name, value in load_file(directory / "model.safetensors").items()}
    found[PATCHES] = found[PATCHES].flatten(1)
    mine = {name.removeprefix("language_model."): found.pop(name) for name in list(found) if "language_model." in name}
    for name in OF_TOKENS:
        mine[name] = torch.cat([mine[name], text.state_dict()[name][len(mine[name]) :]])
    eye.load_state_dict(found), text.load_state_dict(mine)
    return eye.eval(), text


def write(out: Path, eye: Eye, text: Text, tokenizer: Path) -> None:
    """Fills the directory, file by file."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as folder:
        new = Path(folder)
        save_file(weights(eye, text), new / "model.safetensors", metadata={"format": "pt"})
        for name, content in documents().items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n")
        shutil.copyfile(tokenizer, new / "tokenizer.json")
        (new / "chat_template.jinja").write_text(tokens.TEMPLATE)
        for file in new.iterdir():
            file.chmod(0o644)
            file.replace(out / file.name)


def read(path: Path | None, eye_path: Path | None, text_path: Path | None) -> tuple[Eye, Text]:
    """The networks from a joint checkpoint or from the stages' own; untrained where there is none."""
    torch.manual_seed(0)
    eye, text = Eye(), Text()
    for network, key, own in ((eye, "eye", eye_path), (text, "text", text_path)):
        if source := path or own:
            network.load_state_dict(common.load(source)[key])
    return eye.eval(), text.eval()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="checkpoint of the joint stage")
    parser.add_argument("--eye", type=Path, help="or: checkpoint of stage A")
    parser.add_argument("--text", type=Path, help="and: checkpoint of stage B")
    parser.add_argument("--tokenizer", type=Path, default=Path("runs/tokenizer.json"))
    parser.add_argument("--out", type=Path, default=Path("mmserve/packaged/llava"))
    options = parser.parse_args()
    eye, text = read(options.weights, options.eye, options.text)
    write(options.out, eye, text, options.tokenizer)
    size = sum(file.stat().st_size for file in options.out.iterdir() if file.is_file())
    print(f"{options.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
