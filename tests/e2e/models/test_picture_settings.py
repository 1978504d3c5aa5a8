"""Pictures behind the whole server with other settings than the checkpoint's, and InternVL in its authors' format."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.server import serve
from mmserve.checkpoint.load import load
from mmserve.processors.registry import processor_for
from tests.e2e.models.picture_chats import (
    CHUNKS,
    GREEDY,
    LARGE,
    PICTURES,
    QUESTIONS,
    Question,
    ask_all,
    expected,
    in_base64,
)
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.models import vision_model
from tests.fakes.models.qwen_vl import make_qwen_vl, processed_qwen_vl
from tests.fakes.models.vision_checkpoints import make_native_internvl, make_vision

pytestmark = pytest.mark.families

QWEN3_SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}
"""Of the published checkpoints."""
OF_NATIVE_INTERNVL = {"max_patches": 12, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
"""What its authors' code does, whatever preprocessor_config.json says."""


def test_internvl_in_its_authors_format_is_answered_as_in_that_of_transformers(tmp_path: Path) -> None:
    source = make_vision(tmp_path / "source", "internvl")
    settings = source / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | OF_NATIVE_INTERNVL))
    native = make_native_internvl(tmp_path / "native", source)
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1")
    with serve(*options, *CHUNKS, model=str(native)) as target:
        assert target.pid is not None
        found = ask_all(Stack(target.url, target.pid), QUESTIONS)
    assert found == expected(source, QUESTIONS, partial(vision_model.processed, family="internvl"))


@pytest.mark.filterwarnings("ignore:Passing `min_pixels` and `max_pixels`")
def test_one_server_answers_with_the_settings_that_each_request_wants(tmp_path: Path) -> None:
    """The same pictures with other settings are never taken from the caches, in any protocol's count."""
    directory = make_qwen_vl(tmp_path, "qwen2_5_vl")
    processed = partial(processed_qwen_vl, family="qwen2_5_vl")
    asked: list[Question] = [(LARGE, "what is it?"), (0, "or ", LARGE, 1), (2, "no large one")]
    fewer = {"max_pixels": 12 * 28**2}
    size = {"size": {"shortest_edge": 28**2, "longest_edge": 6 * 28**2}}
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1")
    with serve(*options, *CHUNKS, model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        found = [
            ask_all(stack, asked, GREEDY | {"mm_processor_kwargs": each}) for each in (None, fewer, size, None, fewer)
        ]
        counts = [token_counts(stack, each) for each in (None, fewer, size, {})]
        refused = [refusal(stack, each) for each in ({"fps": 1}, {"max_pixels": 41 * 28**2}, {"max_pixels": 1})]
        stack.check_all_released()
    wanted = [expected(directory, asked, partial(processed, **each)) for each in ({}, fewer, size)]
    assert found == [*wanted, *wanted[:2]]
    assert wanted[0] != wanted[1] != wanted[2] != wanted[0]
    rows = [len(set(count)) for count in counts]
    assert rows == [1] * 4, f"all protocols count alike: {counts}"
    plain, few, small, again = (count[0] for count in counts)
    assert plain == again > few > small
    assert refused == [f"mm_processor_kwargs.{name}" for name in ("fps", "max_pixels", "max_pixels")]


def test_pictures_are_made_smaller_where_the_context_is_too_short_for_the_largest(tmp_path: Path) -> None:
    directory = make_qwen_vl(tmp_path, "qwen3_vl")
    settings = directory / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"size": QWEN3_SIZE}))
    processor = processor_for(load(directory))
    assert processor is not None
    assert processor.max_rows == 16384
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1")
    asked: list[Question] = [(LARGE, "what is it?"), ("And ", 0, "?")]
    with serve(*options, *CHUNKS, "--max-model-len", "512", model=str(directory)) as target:
        assert target.pid is not None
        found = ask_all(Stack(target.url, target.pid), asked)
    within = processor.within(511 // 2)
    assert within is not None
    assert processor.expand(640, 480).num_rows == 300
    processed = partial(processed_qwen_vl, family="qwen3_vl", size=within["size"])
    assert found == expected(directory, asked, processed)
    assert found != expected(directory, asked, partial(processed_qwen_vl, family="qwen3_vl", size=QWEN3_SIZE))


def token_counts(stack: Stack, options: dict[str, Any] | None) -> list[int]:
    """Of a prompt with a picture, as all protocols count it."""
    data = in_base64(PICTURES[LARGE])
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    body = {"model": "tiny", "mm_processor_kwargs": options}
    chat = body | {"messages": [{"role": "user", "content": [image]}]}
    response = body | {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": image["image_url"]["url"]}]}],  # type: ignore[index]
        "max_output_tokens": 1,
    }
    source = {"type": "base64", "media_type": "image/png", "data": data}
    claude = body | {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    embedded = chat | {"add_generation_prompt": True}
    of_claude = posted(stack, "/v1/messages", claude | {"max_tokens": 1})["usage"]
    return [
        posted(stack, "/v1/chat/completions", chat | {"max_tokens": 1})["usage"]["prompt_tokens"],
        posted(stack, "/tokenize", chat)["count"],
        posted(stack, "/v1/embeddings", embedded)["usage"]["prompt_tokens"],
        posted(stack, "/v1/responses", response)["usage"]["input_tokens"],
        posted(stack, "/v1/responses/input_tokens", response)["input_tokens"],
        of_claude["input_tokens"] + of_claude["cache_read_input_tokens"],
        posted(stack, "/v1/messages/count_tokens", claude)["input_tokens"],
    ]


def refusal(stack: Stack, options: dict[str, Any]) -> str:
    """The field that the error names."""
    messages = [{"role": "user", "content": "no picture"}]
    body = {"model": "tiny", "messages": messages, "mm_processor_kwargs": options}
    status, found = stack.post("/v1/chat/completions", body)
    assert status == 400
    return str(found["error"]["param"])


def posted(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    status, found = stack.post(path, body)
    assert status == 200, found
    return found
