"""Prompts with images have the ids of transformers' processors, with a virtual id for each row."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.call import LeasedItem, MediaRef
from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from mmserve.processors.registry import processor_for
from tests.fakes.chat_models import deployment_of
from tests.fakes.idefics3 import make_idefics3
from tests.fakes.media import picture

SIZES = [(100, 37), (56, 56), (30, 90)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_idefics3(tmp_path_factory.mktemp("idefics3"))


@pytest.mark.parametrize(
    "parts",
    [(0, "what?\n"), ("\n", 0, "\n\n"), (0, 1, "and", 2), ("text alone",), ("see ", 2, 0, " end")],
    ids=str,
)
def test_ids_equal_those_of_transformers(directory: Path, parts: tuple[str | int, ...]) -> None:
    reference = transformers.AutoProcessor.from_pretrained(directory, use_fast=False)
    images = [part for part in parts if isinstance(part, int)]
    content = [{"type": "image"} if isinstance(part, int) else {"type": "text", "text": part} for part in parts]
    text = reference.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    pictures = [picture(*SIZES[index]) for index in images]
    theirs = reference(text=text, images=pictures or None, add_special_tokens=False)["input_ids"]

    deployment = deployment_of(directory)
    processor = processor_for(deployment.model)
    assert processor is not None
    leased = []
    for index, size in enumerate(SIZES):
        record = MediaRecord(index, FIRST_VIRTUAL_TOKEN + 100 * index, "hit", None, Handle(7, 64 * index, 128))
        leased.append(LeasedItem(record, processor.expand(*size)))
    ours = tuple(MediaPart(part) if isinstance(part, int) else TextPart(part) for part in parts)
    conversation = Conversation((Message("user", ours),))
    refs = [MediaRef("data:,", f"messages[0].content[{index}]") for index in range(3)]
    prompt = PromptBuilder(deployment).build(conversation, refs, leased)
    assert [min(id, FIRST_VIRTUAL_TOKEN) for id in prompt.ids] == [
        FIRST_VIRTUAL_TOKEN if id == reference.image_token_id else id for id in theirs[0]
    ]
    for index in set(images):
        virtual = [id for id in prompt.ids if 0 <= id - leased[index].record.token_start < 100]
        rows = list(range(leased[index].record.token_start, leased[index].record.token_start + len(virtual)))
        assert virtual == rows
        assert len(rows) == leased[index].expansion.num_rows
