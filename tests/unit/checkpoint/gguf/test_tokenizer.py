"""Tokenizers made from a GGUF file's tokens, merges and scores give the ids of those that the file was made from."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from mmserve.checkpoint.gguf.tokenizer import GgufTokenizer
from mmserve.runtime.errors import StartupError

TEXTS = [
    "Hello world, it's 12345 o'clock!\n\n  def f(x):\n\treturn x",
    "Größe 10.000 €, naïve café — 你好世界 🙂",
    "they'LL   say WE'RE   \r\n done  ",
    "camelCase HTTPServer a/b//\n",
    "<|im_start|>user\nHi<|im_end|>",
    "x",
]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"llama-bpe": LLAMA_3, "qwen2": LLAMA_3.replace("{1,3}", ""), "tekken": TEKKEN}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def trained(pre: str) -> tokenizers.Tokenizer:
    """A byte-level tokenizer as the families publish them."""
    found = tokenizers.Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    split = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    }
    by_pattern = [
        pre_tokenizers.Split(Regex(PATTERNS.get(pre, "")), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    found.pre_tokenizer = pre_tokenizers.Sequence(split.get(pre, by_pattern))
    found.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        found.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(TEXTS * 3, trainer)
    return found


def values(of: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    definition = json.loads(of.to_str())
    vocab = definition["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in definition["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }


def made(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(GgufTokenizer(metadata).definition()))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken"])
def test_a_byte_level_tokenizer_is_the_one_that_the_file_was_made_from(pre: str) -> None:
    original = trained(pre)
    found = made(values(original, pre))
    for text in [*TEXTS, "cafe\u0301 12 345 wörld's"]:
        expected = original.encode(text, add_special_tokens=False)
        encoding = found.encode(text, add_special_tokens=False)
        assert encoding.ids == expected.ids
        assert found.decode(encoding.ids, skip_special_tokens=False) == original.decode(
            expected.ids, skip_special_tokens=False
        )


def test_texts_begin_with_a_token_where_the_file_or_its_kind_says_so() -> None:
    def framed(pre: str, **more: Any) -> list[int]:
        ids: list[int] = made(values(trained(pre), pre) | more).encode("x", add_special_tokens=True).ids
        return ids

    assert framed("gpt-2") == framed("llama-bpe", **{"tokenizer.ggml.add_bos_token": False})
    assert framed("llama-bpe")[0] == framed("gpt-2", **{"tokenizer.ggml.add_bos_token": True})[0] == 0
    assert framed("gpt-2", **{"tokenizer.ggml.add_eos_token": True})[-1] == 0


PIECES = {"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -5.0, "▁a": -6.0, "bc": -7.0, "abc": -8.0, "▁ab": -9.0}
PIECES |= {"aa": -10.0, "▁abc": -11.0, "ca": -12.0, "aab": -13.0}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def pieces(**more: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *PIECES],
        "tokenizer.ggml.scores": [0.0] * (3 + 256) + [*PIECES.values()],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(PIECES)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


def merged(text: str) -> list[str]:
    """SentencePiece's way: of neighbours that are a piece together, those with the highest score, leftmost first."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        scores = [PIECES.get(one + other) for one, other in pairwise(parts)]
        known = [score for score in scores if score is not None]
        if not known:
            return parts
        at = scores.index(max(known))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.text("abc ", min_size=1, max_size=30))
def test_sentence_pieces_are_merged_by_their_scores(text: str) -> None:
    found = made(pieces())
    encoding = found.encode(text, add_special_tokens=False)
    assert encoding.tokens == merged(text)
    assert found.decode(encoding.ids) == text


def test_characters_without_a_piece_are_their_bytes() -> None:
    found = made(pieces())
    assert found.encode("aé", add_special_tokens=False).tokens == ["▁a", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("aé").ids) == "aé"
    assert found.encode("a").ids[0] == 1
    assert found.encode("</s>", add_special_tokens=False).ids == [2]


def test_no_space_is_put_before_texts_where_the_file_says_so() -> None:
    found = made(pieces(**{"tokenizer.ggml.add_space_prefix": False}))
    assert found.encode("abc", add_special_tokens=False).tokens == ["abc"]
    assert found.decode(found.encode(" abc").ids) == " abc"


def test_an_answer_ends_with_the_end_of_a_turn_too() -> None:
    metadata = values(trained("gpt-2"), "gpt-2")
    assert GgufTokenizer(metadata).generation_config() == {"bos_token_id": 0, "eos_token_id": [0, 2]}
    config = GgufTokenizer(metadata | {"tokenizer.ggml.eot_token_id": 1}).generation_config()
    assert config["eos_token_id"] == [0, 1, 2]
    assert GgufTokenizer(metadata).config()["eos_token"] == "<|endoftext|>"


def test_a_token_without_text_does_not_stand_for_pictures() -> None:
    metadata = values(trained("gpt-2"), "gpt-2")
    metadata["tokenizer.ggml.tokens"][5] = ""
    with pytest.raises(StartupError, match="no token <image>"):
        GgufTokenizer(metadata).stand_in("<image>", "")


def whole(metadata: dict[str, Any]) -> None:
    tokenizer = GgufTokenizer(metadata)
    tokenizer.definition()
    tokenizer.generation_config()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"model": "bert"}, r"model 'bert' is not supported \(gpt2 and llama are\): put the model's tokenizer.json"),
        ({"model": "gpt2", "pre": "falcon"}, r"pre 'falcon' is not supported"),
        ({"model": "gpt2"}, r"pre 'none' is not supported"),
        ({"scores": [1.0]}, r"scores has 1 entries for 272 tokens"),
        ({"token_type": [1]}, r"272 and 1 entries"),
        ({"tokens": []}, r"0 and 272 entries"),
        ({"tokens": [1, 2]}, r"tokens is not a list of str"),
        ({"eos_token_id": 999}, r"eos_token_id 999 is no token"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(more: dict[str, Any], reason: str) -> None:
    metadata = pieces(**{f"tokenizer.ggml.{name}": value for name, value in more.items()})
    with pytest.raises(StartupError, match=reason):
        whole(metadata)
