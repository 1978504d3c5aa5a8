"""A GGUF file is read as the checkpoint directory that it was made from; what is not supported is refused by name."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mmserve.checkpoint.gguf.directory import directory_of
from mmserve.checkpoint.load import load
from mmserve.checkpoint.locate import locate
from mmserve.checkpoint.spec import TextSpec
from mmserve.checkpoint.stored_tensors import checkpoint_tensors
from mmserve.runtime.errors import StartupError
from tests.fakes.formats.gguf_files import Tensor, gguf_of, write_gguf
from tests.fakes.models.checkpoints import make_llama, make_text


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mmserve" / "gguf"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def in_f16(llama: Path, directory: Path, **more: Any) -> Path:
    directory.mkdir(exist_ok=True)
    return gguf_of(llama, directory / "tiny.gguf", lambda name: "F16", **more)


def as_gguf(text: TextSpec) -> TextSpec:
    """As converters store Llama: pairs that turn are neighbours."""
    layers = [replace(each, rope=replace(each.rope, adjacent=True)) for each in text.layers if each.rope]
    return replace(text, layers=tuple(layers))


def text_of(file: Path) -> TextSpec:
    """Without what float32 adds to numbers."""
    text = load(locate(str(file))).text
    return replace(text, rms_eps=round(text.rms_eps, 9))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3_text", "ministral3"])
def test_the_model_is_that_of_the_checkpoint(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path / "hf", family)
    config = json.loads((directory / "config.json").read_text())
    if family == "gemma3_text":  # GGUF knows the published models: one layer of six has no window, and their scale
        config |= {"layer_types": None, "query_pre_attn_scalar": 32}
        (directory / "config.json").write_text(json.dumps(config))
    if family == "ministral3":  # as published
        config["rope_parameters"] |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}
        (directory / "config.json").write_text(json.dumps(config))
    expected = load(directory).text
    if family in ("llama", "ministral3"):
        expected = as_gguf(expected)
    if family == "gemma3_text":
        expected = replace(expected, norm_offset=0.0)
    assert text_of(in_f16(directory, tmp_path / "gguf")) == expected


def test_tokens_that_end_answers_the_template_and_the_dtype_are_those_of_the_file(llama: Path, tmp_path: Path) -> None:
    file = in_f16(llama, tmp_path)
    model, original = load(locate(str(file))), load(llama)
    assert (model.bos_token_id, model.eos_token_ids) == (original.bos_token_id, original.eos_token_ids)
    assert model.quantization is None
    assert model.checkpoint_dtype == "float16"
    template = (Path(model.path) / "chat_template.jinja").read_text()
    assert template == (llama / "chat_template.jinja").read_text()


def test_the_kinds_of_matrices_are_named(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf")
    file = gguf_of(
        directory, tmp_path / "t.gguf", lambda name: "F16" if "embd" in name or "output." in name else "Q8_0"
    )
    assert str(load(locate(str(file))).quantization) == "GGUF Q4_K_M (Q8_0 12, F16 4)"


def test_a_directory_with_one_file_is_a_model(llama: Path, tmp_path: Path) -> None:
    file = in_f16(llama, tmp_path / "alone")
    assert locate(str(file.parent)) == locate(str(file))
    in_f16(llama, tmp_path / "alone").rename(file.parent / "second.gguf")
    in_f16(llama, tmp_path / "alone")
    with pytest.raises(StartupError, match=r"holds 2 GGUF models \(second.gguf, tiny.gguf\): name one of the files"):
        locate(str(file.parent))


def test_a_checkpoint_directory_that_holds_a_gguf_file_too_is_read_as_a_checkpoint(tmp_path: Path) -> None:
    directory = make_llama(tmp_path / "hf")
    gguf_of(directory, directory / "copy.gguf", lambda name: "F16")
    assert locate(str(directory)) == directory
    assert load(directory).checkpoint_dtype == "float32"


def test_the_directory_is_made_once_and_again_when_the_file_changes(llama: Path, tmp_path: Path, cache: Path) -> None:
    file = in_f16(llama, tmp_path)
    made = directory_of(file)
    (made / "mark").touch()
    assert directory_of(file) == made
    assert (made / "mark").exists()
    os.utime(file, ns=(1, 1))
    assert directory_of(file) != made
    file.unlink()
    other = directory_of(in_f16(llama, tmp_path / "other"))
    assert [*cache.iterdir()] == [other], "those of lost files are removed"


def test_a_file_that_was_replaced_by_a_shorter_one_is_noticed(llama: Path, tmp_path: Path) -> None:
    file = in_f16(llama, tmp_path)
    made = directory_of(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StartupError, match="is not the file that it was"):
        list(checkpoint_tensors(made))


def test_files_beside_it_take_the_place_of_those_made(llama: Path, tmp_path: Path) -> None:
    file = in_f16(llama, tmp_path)
    definition = json.loads((llama / "tokenizer.json").read_text()) | {"version": "1.0", "truncation": None}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    (tmp_path / "chat_template.jinja").write_text("mine")
    made = locate(str(file))
    assert json.loads((made / "tokenizer.json").read_text()) == definition
    assert (made / "chat_template.jinja").read_text() == "mine"


def test_a_tokenizer_of_another_model_beside_it_is_refused(llama: Path, tmp_path: Path) -> None:
    file = in_f16(llama, tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"other": 0, "tokens": 1}}}))
    with pytest.raises(StartupError, match=r"tokenizer\.json beside it is of another model: 2 of 2 tokens differ"):
        locate(str(file))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"general__architecture": "mamba"},
            "general.architecture 'mamba' is not supported as GGUF; supported are llama",
        ),
        ({"llama__expert_count": 8}, "llama.expert_count 8 is not supported"),
        ({"llama__rope__scaling__type": "spiral"}, "rope.scaling.type 'spiral' is not supported"),
        ({"llama__rope__dimension_count": 4}, "rope.dimension_count 4 beside heads of 8 is not supported"),
        ({"llama__feed_forward_length": [96, 64]}, r"llama.feed_forward_length \[96, 64\] is not supported"),
        ({"split__count": 3}, "join its parts with llama-gguf-split --merge"),
        ({"tokenizer__ggml__model": "t5"}, "model 't5' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    llama: Path, tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StartupError, match=rf"tiny\.gguf: .*{reason}"):
        locate(str(in_f16(llama, tmp_path, **more)))


def test_keys_that_say_nothing_and_equal_numbers_for_all_layers_are_read(llama: Path, tmp_path: Path) -> None:
    more = {"llama__expert_count": 0, "llama__feed_forward_length": [96, 96], "llama__attention__head_count_kv": [4, 4]}
    assert load(locate(str(in_f16(llama, tmp_path, **more)))).text == load(locate(str(in_f16(llama, tmp_path)))).text


def test_a_missing_value_is_named(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": Tensor("F32", (1, 1), bytes(4))}
    values = {"general.architecture": "llama", "llama.embedding_length": 1, "tokenizer.ggml.tokens": ["a"]}
    with pytest.raises(StartupError, match=r"llama\.attention\.head_count is missing"):
        locate(str(write_gguf(tmp_path / "x.gguf", values, tensors)))


def test_divisors_of_the_rope_are_read_from_their_tensor(tmp_path: Path) -> None:
    """As converters store Llama 3.1's rope."""
    directory = make_llama(tmp_path / "hf")
    divisors = (1.0, 2.0, 4.0, 8.0)
    file = gguf_of(
        directory,
        tmp_path / "x.gguf",
        lambda name: "F32",
        extra={"rope_freqs.weight": Tensor("F32", (4,), struct.pack("<4f", *divisors))},
    )
    rope = load(locate(str(file))).text.layers[0].rope
    assert rope is not None
    assert (rope.divisors, rope.long_divisors, rope.amplitude) == (divisors, divisors, 1.0)


def test_yarn_is_read_with_its_factor(llama: Path, tmp_path: Path) -> None:
    more = {
        "llama__rope__scaling__type": "yarn",
        "llama__rope__scaling__factor": 4.0,
        "llama__rope__scaling__original_context_length": 128,
    }
    rope = load(locate(str(in_f16(llama, tmp_path, **more)))).text.layers[0].rope
    assert rope is not None
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 128)
