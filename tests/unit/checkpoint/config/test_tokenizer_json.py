"""A tokenizer made of vocab.json, merges.txt and added tokens is that of transformers and of its own tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import transformers
from llguidance import LLTokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mmserve.checkpoint.config.added_tokens import added_tokens
from mmserve.checkpoint.config.tokenizer_json import QWEN_2, no_tokenizer, tokenizer_json, tokenizer_text
from mmserve.grammar.isolated import byte_tokenizer
from mmserve.runtime.errors import StartupError
from tests.fakes.models.tokenizer_files import Form, write_parts

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]
PLAIN = ["<tool_call>", "</tool_call>"]
ROLES = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
CORPUS = [
    "How many red circles are there? There're three red circles left of the blue square, and I'll count them.",
    "It's the quick brown fox; they've 1234 of them in 2026.\n\n  def f(x):\n\treturn x + 1\r\n",
    "Größe, naïve café, Ελληνικά, 数を数える, один два три, 😀😀",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "   three spaces, and four    inside; one behind ",
    "tabs\t\tand\n\n\nnewlines\r\n \n  \n",
    "I'M we'LL they'd can't 'twas ''s",
    "0 12 345 6789 ½ ² ٣٤ 1,000.50",
    "cafe\u0301 is composed to caf\u00e9; \u1e9b\u0323 \ufb01 \uac00 \u1112\u1161\u11ab",
    "👩\u200d👩\u200d👧 \u2028 \u00a0 \x00 \ufffd 𝔘𝔫𝔦",
    "<|im_start|>user\n<img><IMG_CONTEXT><IMG_CONTEXT></img>\nhow many?<|im_end|>\n<|im_start|>assistant\n",
    'a <|im_end|> b<|endoftext|><tool_call>{"a": 1}</tool_call> <tool_call > <img >',
]


class Both(NamedTuple):
    """Ours, and the reference."""

    made: Tokenizer
    whole: Tokenizer
    """Of the tokenizer's own tokenizer.json."""
    theirs: Any
    """transformers' of the same files."""


def trained() -> Tokenizer:
    """A small tokenizer in the form of Qwen2's tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN_2), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return tokenizer


def definition_of(tokenizer: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found


def made_of(directory: Path) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text(directory).decode())


@pytest.fixture(scope="module", params=["decoder", "older files"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    form: Form = request.param
    whole = trained()
    directory = tmp_path_factory.mktemp("parts")
    write_parts(directory, definition_of(whole), form, **ROLES)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    assert type(theirs) is transformers.Qwen2Tokenizer
    return Both(made_of(directory), whole, theirs)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_the_same(both: Both, text: str) -> None:
    encoding, expected = both.made.encode(text), both.whole.encode(text)
    assert encoding.ids == expected.ids == both.theirs(text).input_ids
    assert encoding.offsets == expected.offsets
    for skipped in (False, True):
        ours = both.made.decode(encoding.ids, skip_special_tokens=skipped)
        theirs = both.theirs.decode(encoding.ids, skip_special_tokens=skipped, clean_up_tokenization_spaces=False)
        assert ours == both.whole.decode(encoding.ids, skip_special_tokens=skipped) == theirs


def test_the_same_tokens_are_added(both: Both) -> None:
    ours, theirs = both.made.get_added_tokens_decoder(), both.theirs.added_tokens_decoder
    assert {id: repr(token) for id, token in ours.items()} == {id: repr(token) for id, token in theirs.items()}
    assert [token.content for _, token in sorted(ours.items())] == SPECIAL + PLAIN
    assert both.made.get_vocab() == both.whole.get_vocab() == both.theirs.get_vocab()


def test_it_has_the_form_of_qwens_own(tmp_path: Path) -> None:
    definition = definition_of(trained())
    write_parts(tmp_path, definition, **ROLES)
    made = definition_of(made_of(tmp_path))
    for part in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor"):
        assert made[part] == definition[part]
    assert made["model"]["merges"] == definition["model"]["merges"]


def test_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    """Also where a number before them is free. A token of the vocabulary that ends texts counts as one."""
    definition = definition_of(trained())
    for token in definition["added_tokens"]:
        token["id"] += 7
    write_parts(tmp_path, definition, eos_token="!", bos_token={"content": "?", "lstrip": False})
    vocab = definition["model"]["vocab"]
    expected = {token["id"]: token["content"] for token in definition["added_tokens"]}
    assert added_tokens(tmp_path) == expected | {vocab["!"]: "!", vocab["?"]: "?"}
    made = made_of(tmp_path)
    assert made.encode("<img>").ids == [id for id, text in expected.items() if text == "<img>"]
    assert made.decode([vocab["!"], vocab["a"]], skip_special_tokens=True) == "a"


def test_grammars_are_compiled_for_it(tmp_path: Path) -> None:
    definition = definition_of(trained())
    write_parts(tmp_path, definition)
    compiled = LLTokenizer(tokenizer_text(tmp_path).decode())
    assert compiled.vocab_size == len(definition["model"]["vocab"]) + len(SPECIAL + PLAIN)
    assert compiled.tokenize_str("It's 数") == made_of(tmp_path).encode("It's 数").ids
    assert byte_tokenizer(tmp_path).tokenize_str("a") == [compiled.vocab_size + ord("a")]


def test_its_own_tokenizer_json_is_preferred(tmp_path: Path) -> None:
    write_parts(tmp_path, definition_of(trained()))
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": []}')
    assert tokenizer_json(tmp_path) == {"added_tokens": []}
    assert tokenizer_text(tmp_path) == b'{"added_tokens": []}'


@pytest.mark.parametrize("lacking", ["vocab.json", "merges.txt", "tokenizer_config.json", "the class"])
def test_what_cannot_be_made_is_refused(tmp_path: Path, lacking: str) -> None:
    write_parts(tmp_path, definition_of(trained()))
    if lacking == "the class":
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    else:
        (tmp_path / lacking).unlink()
    assert tokenizer_json(tmp_path) is None
    assert added_tokens(tmp_path) == {}
    with pytest.raises(StartupError, match=r"no tokenizer\.json; without it mmserve reads vocab\.json and merges\.txt"):
        tokenizer_text(tmp_path)
    named = {"the class": "GPT2Tokenizer", "tokenizer_config.json": "None"}.get(lacking, "Qwen2Tokenizer")
    assert f"tokenizer_class: {named}" in str(no_tokenizer(tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", b'{"a": "b"}'),
        ("merges.txt", b"\xff\xfe a"),
        ("tokenizer_config.json", b'{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"x": {}}}'),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_parts(tmp_path, definition_of(trained()))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartupError, match=name):
        tokenizer_json(tmp_path)


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(StartupError, match=r"cannot read .*tokenizer\.json"):
        tokenizer_text(tmp_path)
