"""Rows with calls and JSON: they are what the chat template renders, and what they teach is true of the picture."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

pytest.importorskip("tokenizers")

from mmserve.httpserver.prompt.template.chat_template import ChatTemplate
from training import rows
from training.exam import errands
from training.pictures import looks
from training.pictures.scenes import Scene
from training.pictures.world import PATCHES
from training.rows import make_row
from training.tokens import BOS, EOS, FIRST, IMAGE, TEMPLATE, USER, Coder
from training.words import calling, facts, functions, objects
from training.words.errands import coded, make_errand, mixed
from training.words.phrases import tally
from training.words.written import Reply, Segment


def text_of(reply: Reply) -> str:
    return "".join(text for text, _ in reply.pieces)


def message_of(role: str, said: str | Reply, pictures: int) -> dict[str, Any]:
    """A turn as a client sends it."""
    if role == "user" and pictures:
        return {"role": role, "content": [{"type": "image"}, {"type": "text", "text": said}]}
    if not isinstance(said, Reply):
        return {"role": role, "content": said}
    text = text_of(said)
    if not text.startswith("<tool_call>"):
        return {"role": role, "content": text}
    calls = [part.strip() for part in text.replace("</tool_call>", "").split("<tool_call>") if part.strip()]
    return {"role": role, "content": None, "tool_calls": [{"function": json.loads(call)} for call in calls]}


def rendered(segment: Segment) -> str:
    """The chat template's text of a segment on one picture."""
    turns = [message_of(role, said, not number) for number, (role, said) in enumerate(segment.turns)]
    tools = [
        {"type": "function", "function": {"name": f.name, "description": "", "parameters": f.schema}}
        for f in segment.functions
    ]
    return ChatTemplate(TEMPLATE, {}).render(turns, tools=tools or None, add_generation_prompt=False)


def segments(scene: Scene, rng: random.Random) -> list[Segment]:
    """One of each sort that nothing is forced in."""
    made = [calling.asked_call(scene, rng), calling.two_calls(scene, rng), calling.after_result(scene, rng)]
    made += [calling.no_call(("What is it?", "a star"), rng), calling.unknown_function(scene, rng)]
    made += [objects.asked_answer(("What is it?", "a star"), rng)]
    return made


def test_segments_are_tokenised_as_the_chat_template_renders_them(coder: Coder) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        for segment in segments(looks.scene(seed, 0.3), rng):
            mine = [BOS, USER, FIRST, IMAGE]
            for ids, _, _ in coded(segment, coder, pictures=True):
                mine += ids
            assert mine == coder.tokenizer.encode(rendered(segment), add_special_tokens=False).ids, rendered(segment)


def test_rows_are_fixed_by_their_seed_and_learn_the_ends_of_answers(coder: Coder) -> None:
    for seed in range(40):
        row = make_errand(seed, coder)
        assert row.tokens == make_errand(seed, coder).tokens
        assert len(row.tokens) <= rows.LENGTH
        assert row.tokens.count(IMAGE) == PATCHES * len(row.scenes)
        inside = {index for _, first, last in row.answers for index in range(first, last + 1)}
        for index, target in enumerate(row.targets):
            assert target < 0 or (index in inside and target == row.tokens[index + 1])
        assert all(row.targets[last] == EOS for _, _, last in row.answers)
        text = coder.tokenizer.decode(row.tokens, skip_special_tokens=False)
        assert text.count("<tool_call>") == text.count("</tool_call>")


def test_what_a_schema_gives_is_not_learned(coder: Coder) -> None:
    rng = random.Random(1)
    for _ in range(50):
        reply = text_and_learned(objects.with_keys("What?", {"shade": "red", "sides": 4}, rng).turns[1][1])
        if "shade" not in reply:
            break
    else:
        pytest.fail("keys are always learned")
    assert '": "red"' in reply
    assert '": 4' in reply


def text_and_learned(said: str | Reply) -> str:
    """What is learned of an answer."""
    assert isinstance(said, Reply)
    return "".join(text for text, learned in said.pieces if learned)


def test_about_half_of_the_rows_are_those_of_the_stage_before(coder: Coder) -> None:
    same = sum(mixed(seed, coder).tokens == make_row(seed, coder, loose=0.5).tokens for seed in range(60))
    assert 18 <= same <= 42


def test_answers_are_json_and_calls_have_the_parameters_of_their_functions() -> None:
    for seed in range(60):
        rng, scene = random.Random(seed), looks.scene(seed, 0.3)
        segment = calling.asked_call(scene, rng)
        made = json.loads(text_of(segment.turns[1][1]).removeprefix("<tool_call>").removesuffix("</tool_call>"))  # type: ignore[arg-type]
        function = next(f for f in segment.functions if f.name == made["name"])
        assert list(made["arguments"]) == [p.name for p in function.parameters]
        for answer in (objects.of_facts(scene, rng), objects.of_one(scene, rng), objects.of_picture(scene, rng)):
            assert answer is None or isinstance(json.loads(text_of(answer.turns[1][1])), dict)  # type: ignore[arg-type]


def test_facts_are_true_and_their_words_mean_one_thing() -> None:
    for seed in range(150):
        scene = looks.scene(seed, 0.3)
        for fact in facts.all_facts(scene, random.Random(seed)):
            words = fact.subject.removeprefix("the ").split()
            if fact.attribute == "count":
                continue
            if fact.attribute in ("colour", "shape", "size", "place") and words[-1] not in ("number", "word"):
                name = words[-1] if words[-1] not in ("object", "shape") else None
                tint = words[0] if len(words) == 2 else None
                assert tally(scene, tint, name) == 1
                item = next(i for i in scene.shapes if i.name == (name or i.name) and i.colour == (tint or i.colour))
                assert fact.attribute == "place" or fact.value in (item.colour, item.name, item.size)
            if fact.attribute == "word":
                assert fact.value == scene.text


def test_the_examination_has_names_and_words_of_its_own() -> None:
    assert not set(errands.NAMES) & {*functions.VERBS, *functions.OBJECTS}
    assert not set(errands.PARAMETERS) & {
        *functions.ANY,
        *(n for names in functions.PARAMETERS.values() for n in names),
    }
    assert not set(errands.OTHER_CALLS) & set(calling.ASK_FOR_CALLS)
