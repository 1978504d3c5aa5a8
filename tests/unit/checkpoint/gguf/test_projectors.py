"""A text model and its projector as GGUF files answer as the checkpoint that they were made from, with a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from mmserve.checkpoint.gguf.directory import directory_of
from mmserve.checkpoint.load import load
from mmserve.ipc.arena import Arena
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.processors.registry import processor_for
from tests.fakes.formats.gguf_files import gguf_of
from tests.fakes.formats.gguf_projectors import projector_of
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.qwen_vl import make_qwen_vl
from tests.fakes.models.vision_checkpoints import make_vision
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import read_by_tower
from tests.fakes.ranks.engine import Driver, make_runner

NUM_TOKENS = 8


def make_gemma3(directory: Path) -> Path:
    """GGUF knows the published models: one layer of six has no window, and attention has the usual scale."""
    text = {"layer_types": None, "sliding_window_pattern": 6, "query_pre_attn_scalar": 8}
    return changed(make_vision(directory, "gemma3"), "text_config", text)


def make_qwen2_5_vl(directory: Path) -> Path:
    """GGUF does not say the size of windows, which is this one in all published models."""
    return changed(make_qwen_vl(directory, "qwen2_5_vl"), "vision_config", {"window_size": 112})


def changed(directory: Path, part: str, values: dict[str, Any]) -> Path:
    file = directory / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {part: config[part] | values}))
    return directory


MAKERS: dict[str, Callable[[Path], Path]] = {
    "gemma3": make_gemma3,
    "qwen2_5_vl": make_qwen2_5_vl,
    "idefics3": make_idefics3,
    **{family: partial(make_vision, family=family) for family in ("internvl", "mistral3", "pixtral")},
    **{family: partial(make_qwen_vl, family=family) for family in ("qwen3_vl", "qwen2_vl")},
}


MORE = {"qwen3_vl": {"qwen3vl__n_deepstack_layers": 2}, "idefics3": {"llama__vocab_size": 262}}
"""Key-values of files that say nothing new."""


@pytest.fixture(scope="module", params=MAKERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 20)
    yield arena
    arena.close()


def made(checkpoint: Path, directory: Path, kind: str, plain: Path | None = None, **more: Any) -> Path:
    """A directory made from two files."""
    keys = MORE.get(json.loads((checkpoint / "config.json").read_text())["model_type"], {})
    file = gguf_of(checkpoint, directory / "tiny.gguf", lambda name: kind, plain, **keys)
    projector_of(checkpoint, directory / "mmproj-tiny.gguf", kind, plain=plain, **more)
    return directory_of(file, directory)


def answer(directory: Path, arena: Arena) -> list[int]:
    """Greedy tokens after a picture between letters; image processor, tokenizer and tower are the directory's."""
    spec = load(directory)
    processor = processor_for(spec)
    assert processor is not None
    tower = load_tower(spec, platform_for("cpu", "float32"), lambda *_: None)
    (rows,) = tower(read_by_tower(processor, [processor.views(png(0, 60, 50))]))
    handle, _ = put_rows(arena, rows, 0)
    expansion = processor.expand(60, 50)
    runs, prompt = iter(expansion.runs), list[int]()
    for token in Tokenizer.from_file(str(directory / "tokenizer.json")).encode(f"ab{expansion.text}cd").ids:
        prompt += [token] * (next(runs).rows if token == spec.image_token_id else 1)
    ids, spans = prompt_with_images(
        prompt, [handle], image_id=spec.image_token_id or 0, grids=[[run.grid for run in expansion.runs]]
    )
    driver = Driver(make_runner(directory, arena))
    sequence = driver.add(0, ids, spans=spans)
    driver.run(NUM_TOKENS)
    return sequence.output[:NUM_TOKENS]


def test_an_unquantized_file_answers_as_its_checkpoint(checkpoint: Path, tmp_path: Path, arena: Arena) -> None:
    assert answer(made(checkpoint, tmp_path, "F32"), arena) == answer(checkpoint, arena)


def test_a_quantized_file_answers_as_its_numbers_do(checkpoint: Path, tmp_path: Path, arena: Arena) -> None:
    directory = made(checkpoint, tmp_path, "Q8_0", tmp_path / "plain")
    assert "Q8_0" in str(load(directory).quantization)
    assert answer(directory, arena) == answer(tmp_path / "plain", arena)


def test_the_token_template_and_settings_are_the_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    directory = made(checkpoint, tmp_path, "F32")
    specs = [load(directory), load(checkpoint)]
    found, expected = ((each.family, each.image_token_id, each.image_token) for each in specs)
    assert found == expected
    templates = [(each / "chat_template.jinja").read_text() for each in (directory, checkpoint)]
    assert templates[0] == templates[1]
    expansions = [(processor := processor_for(each)) and processor.expand(300, 200) for each in specs]
    assert expansions[0] == expansions[1]


def test_a_vocabulary_that_ends_before_the_pictures_token_has_a_spare_one(tmp_path: Path) -> None:
    checkpoint = make_gemma3(tmp_path / "hf")
    file = gguf_of(checkpoint, tmp_path / "tiny.gguf", lambda name: "F32")
    file.write_bytes(file.read_bytes().replace(b"<image_soft_token>", b"<unused1234567890>"))
    projector_of(checkpoint, tmp_path / "mmproj.gguf")
    found = load(directory_of(file, tmp_path))
    assert (found.image_token_id, found.image_token) == (load(checkpoint).image_token_id, "<unused1234567890>")


def test_a_template_without_pictures_is_replaced_where_the_family_writes_its_own(tmp_path: Path) -> None:
    checkpoint = make_vision(tmp_path / "hf", "internvl")
    file = gguf_of(checkpoint, tmp_path / "tiny.gguf", lambda name: "F32", tokenizer__chat_template="{{ messages }}")
    projector_of(checkpoint, tmp_path / "mmproj.gguf")
    template = jinja2.Template((directory_of(file, tmp_path) / "chat_template.jinja").read_text())
    content = [{"type": "image"}, {"type": "text", "text": "Read it."}]
    text = template.render(messages=[{"role": "user", "content": content}], add_generation_prompt=True)
    assert text == "<|im_start|>user\n<IMG_CONTEXT>\nRead it.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "mistral3"])
def test_a_text_model_without_its_projector_takes_text(tmp_path: Path, family: str) -> None:
    checkpoint = MAKERS[family](tmp_path / "hf")
    found = load(directory_of(gguf_of(checkpoint, tmp_path / "tiny.gguf", lambda name: "F32"), tmp_path))
    assert found.vision is None
    assert {layer.rope and layer.rope.sections for layer in found.text.layers} == {()}
