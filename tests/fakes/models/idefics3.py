"""A tiny random Idefics3, or SmolVLM, as a real directory, made with transformers."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tests.fakes.models.checkpoints import llama_config, randomise_small_parameters, tokenizer

TILE = 56
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | capitalize }}: {% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)


def make_idefics3(directory: Path, *, seed: int = 0, kind: str = "Idefics3") -> Path:
    """Tiles of 56 pixels in 16 patches, which become 4 rows; a picture has up to 5 tiles. All files included.

    ``kind``: of transformers' classes.
    """
    torch.manual_seed(seed)
    processor = transformers.Idefics3Processor(
        transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}, return_row_col_info=True
        ),
        tokenizer(),
        image_seq_len=4,
        chat_template=TEMPLATE,
    )
    vision = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": TILE,
        "patch_size": 14,
        "initializer_range": 0.2,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=llama_config(vocab_size=len(processor.tokenizer)),
        vision_config=vision,
        image_token_id=processor.image_token_id,
        scale_factor=2,
        tie_word_embeddings=False,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    randomise_small_parameters(model)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    for name in ("processor_config.json", "tokenizer_config.json"):
        (directory / name).write_text((directory / name).read_text().replace("Idefics3", kind))
    return directory


def make_smolvlm(directory: Path) -> Path:
    """Its processor cannot be built without packages for videos; the files are those of Idefics3 with its names."""
    return make_idefics3(directory, kind="SmolVLM")
