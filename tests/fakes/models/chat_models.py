"""Tiny checkpoints without weights: a tokenizer trained on the spot, a chat template, a config."""

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mmserve.checkpoint.load import load
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment

Kind = Literal["byte-level", "sentencepiece", "metaspace"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\nWrite each call as <tool_call>\n"
    '{"name": ..., "arguments": ...}\n</tool_call>.\n'
    "<tools>{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}</tools><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] or [] %}{% if part['type'] == 'image' %}<image>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_15 = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = '' %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + (system_message if loop.first else '') + message['content'] | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = {
    "byte-level": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"],
    "sentencepiece": ["<unk>", "<s>", "</s>", "<image>"],
    "metaspace": ["<unk>", "<s>", "</s>", "<image>"],
}
_NAMED = {
    "byte-level": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"},
    "sentencepiece": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "metaspace": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
_CORPUS = [
    "How many red circles are there? There are three red circles left of the blue square.",
    "system user assistant USER: ASSISTANT: What is the colour of the shape above the line?",
    "The quick brown fox jumps over the lazy dog. 0123456789 + - * / = < > | [INST] [/INST] <<SYS>> image im start",
]


def make_tokenizer(kind: Kind) -> Tokenizer:
    """Trained on three sentences. ``sentencepiece`` is the old Llama layout, ``metaspace`` the newer one."""
    special = [AddedToken(text, special=True, normalized=False) for text in SPECIAL[kind]]
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        if kind == "sentencepiece":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        special += [AddedToken(f"<0x{byte:02X}>", special=False) for byte in range(256)]
        alphabet = []
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, max_token_length=8, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _finished(tokenizer, kind)


def _finished(tokenizer: Tokenizer, kind: Kind) -> Tokenizer:
    definition = json.loads(tokenizer.to_str())
    # The tokens of byte fallback belong to the vocabulary, not to the added tokens.
    definition["added_tokens"] = [token for token in definition["added_tokens"] if token["content"] in SPECIAL[kind]]
    tokenizer = Tokenizer.from_str(json.dumps(definition))
    if kind != "byte-level":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def write_chat_model(
    directory: Path, kind: Kind = "byte-level", template: str | None = CHATML, *, images: bool = True
) -> Path:
    """config.json, tokenizer files, chat template and an empty weights file; image_size 28, patch 14: 4 tokens."""
    tokenizer = make_tokenizer(kind)
    tokenizer.save(str(directory / "tokenizer.json"))
    write(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **_NAMED[kind]})
    text = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
    text |= {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 4096}
    if images:
        vision = {"image_size": 28, "patch_size": 14, "hidden_size": 8, "num_attention_heads": 2}
        token = tokenizer.token_to_id("<image>")
        write(
            directory / "config.json",
            {"model_type": "llava", "text_config": text, "vision_config": vision, "image_token_index": token},
        )
        size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
        write(directory / "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor", **size})
    else:
        write(directory / "config.json", {"model_type": "llama", **text})
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    (directory / "model.safetensors").touch()
    return directory


def write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content))


def deployment_of(directory: Path, *, max_model_len: int = 4096, run_dir: str = "", **config: Any) -> Deployment:
    """A Deployment around a checkpoint directory, CPU and float32."""
    return Deployment(
        config=Config(**config),
        model=load(directory),
        served_name="tiny",
        device="cpu",
        dtype="float32",
        max_model_len=max_model_len,
        kv_tokens=64 * 16,
        arena_nbytes=1 << 20,
        run_dir=run_dir,
        hash_seed=12345,
        url="http://127.0.0.1:0",
        version="0",
    )
