"""Prompts with pictures have the ids that transformers' whole processors give them, with a virtual id for each row."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from mmserve.checkpoint.vision_families import FAMILIES
from mmserve.cli import main as cli
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.call import LeasedItem, MediaRef
from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from mmserve.processors.interface import ImageProcessor
from mmserve.processors.registry import processor_for
from tests.fakes.models.chat_models import deployment_of
from tests.fakes.models.tokenizer_files import without_tokenizer_json
from tests.fakes.models.vision_checkpoints import make_native_internvl, make_vision
from tests.fakes.models.whole_processors import WHOLE, make_adding_bos, processed_ids, whole_processor
from tests.fakes.pictures.media import picture

PICTURES = [picture(*size) for size in [(100, 37), (56, 56), (30, 90)]]
REFS = [MediaRef("data:,", f"messages[0].content[{index}]") for index in range(len(PICTURES))]
ID_STEP = 1000
"""Between the first virtual ids of two pictures."""
PAN_AND_SCAN = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20}
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    **{f"{family}, {'' if bos else 'no '}bos": (family, bos, {}) for family in WHOLE for bos in (True, False)},
    "gemma3, pan and scan": ("gemma3", True, PAN_AND_SCAN),
}
"""Family, whether the template writes the bos token, and settings of its pictures."""


class Both(NamedTuple):
    """A checkpoint, as transformers and as mmserve process its prompts."""

    reference: Any
    prompts: PromptBuilder
    images: ImageProcessor
    image_token_id: int | None
    options: dict[str, Any]


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    family, bos, options = CASES[request.param]
    directory = make_adding_bos(tmp_path_factory.mktemp(family), family)
    if not bos:
        begin_with_text(directory)
    deployment = deployment_of(directory)
    processor = processor_for(msgspec.structs.replace(deployment.model, processor_options=options))
    assert processor is not None
    reference = whole_processor(directory, family)
    return Both(reference, PromptBuilder(deployment), processor, deployment.model.image_token_id, options)


def begin_with_text(directory: Path) -> None:
    """Let the template begin with a text in the place of the bos token, which the tokenizer then adds."""
    file = directory / "chat_template.jinja"
    file.write_text("A chat.\n" + file.read_text().replace("{{ bos_token }}", ""))


def test_every_family_with_pictures_is_compared() -> None:
    """But for the authors' format of InternVL, which transformers does not read."""
    assert set(WHOLE) == set(FAMILIES) - {"internvl_chat"} | {"pixtral", "smolvlm"}


@pytest.mark.parametrize(
    "parts",
    [
        (0, "what?\n"),
        ("\n", 1, "\n\n"),
        (2, 0, 1, "and"),
        ("see ", 1, "or\n", 2, " end ", 0),
        (0, 2, 0),
        ("text alone",),
    ],
    ids=str,
)
def test_ids_equal_those_of_transformers(both: Both, parts: tuple[str | int, ...]) -> None:
    shown = [part if isinstance(part, str) else PICTURES[part] for part in parts]
    theirs = processed_ids(both.reference, shown, **both.options)

    images = [part for part in parts if isinstance(part, int)]
    expansions = [both.images.among(len(images)).expand(*each.size) for each in PICTURES]
    records = [
        MediaRecord(index, FIRST_VIRTUAL_TOKEN + ID_STEP * index, "hit", None, Handle(7, 64 * index, 128))
        for index in range(len(PICTURES))
    ]
    ours = tuple(MediaPart(part) if isinstance(part, int) else TextPart(part) for part in parts)
    conversation = Conversation((Message("user", ours),))
    assert both.prompts.token_ids(conversation, REFS, expansions).tolist() == theirs

    prompt = both.prompts.build(conversation, REFS, [*map(LeasedItem, records, expansions)])
    assert [both.image_token_id if id >= FIRST_VIRTUAL_TOKEN else id for id in prompt.ids] == theirs
    virtual = [id for id in prompt.ids if id >= FIRST_VIRTUAL_TOKEN]
    rows = [range(expansion.num_rows) for expansion in expansions]
    assert virtual == [records[index].token_start + row for index in images for row in rows[index]]


def test_internvl_as_its_authors_publish_it(tmp_path: Path) -> None:
    """With vocab.json and merges.txt in place of tokenizer.json: the same model and the same prompts."""
    whole = make_native_internvl(tmp_path / "whole", make_vision(tmp_path / "source", "internvl"))
    parts = without_tokenizer_json(shutil.copytree(whole, tmp_path / "parts"))
    assert cli.main(["models", str(parts)]) == 0

    conversation = Conversation(
        (Message("user", (TextPart("see\n"), MediaPart(0), TextPart("it's <img>, caf\u00e9 123?"))),)
    )
    models, prompts = [], []
    for directory in (whole, parts):
        deployment = deployment_of(directory)
        images = processor_for(deployment.model)
        assert images is not None
        expansion = images.expand(*PICTURES[0].size)
        models.append(msgspec.structs.replace(deployment.model, path=""))
        prompts.append(PromptBuilder(deployment).token_ids(conversation, REFS[:1], [expansion]).tolist())
    assert models[0] == models[1]
    assert prompts[0] == prompts[1]
    assert prompts[0].count(models[0].image_token_id) == expansion.num_rows
