"""Answers as JSON objects: asked for in words, or forced by a schema that the model does not see."""

from __future__ import annotations

import random

from training.pictures.scenes import Scene
from training.words.facts import Fact, Value, about_one, joined, pick
from training.words.functions import ANY, PARAMETERS, made_up
from training.words.phrasebook import put
from training.words.questions import Turn
from training.words.written import Reply, Segment, members

IN_JSON = ("{q} Answer in JSON.", "{q} Answer as JSON.", "{q} Reply in JSON.", "{q} Give me JSON.", "In JSON: {q}",
           "{q} Answer with a JSON object.", "{q} Use JSON.")  # fmt: skip
WITH_KEYS = ("{q} Answer in JSON with the {k}.", "{q} Answer as JSON with the {k}.", "{q} JSON with the {k}.",
             "{q} Reply in JSON with the {k}.", "{q} Answer with a JSON object that has the {k}.")  # fmt: skip
TELL = ("Give {w} as JSON.", "Tell me {w} in JSON.", "What is {w}? Answer in JSON.", "Write {w} as JSON.",
        "{w} as JSON")  # fmt: skip
ABOUT = ("Describe {n}.", "What is {n} like?", "Tell me about {n}.", "Look at {n}.", "What do you know about {n}?")
PICTURE = ("Describe the picture.", "What do you see?", "What is in the picture?", "Describe this image.",
           "Look at the picture.")  # fmt: skip
ANSWER = "answer"
"""The key where nothing says which."""


def typed(answer: str, rng: random.Random) -> Value:
    """An answer in words as a value: numbers and yes or no in either type, as a schema may want them."""
    if answer.isdigit() and answer == str(int(answer)) and rng.random() < 0.75:
        return int(answer)
    if answer in ("yes", "no") and rng.random() < 0.6:
        return answer == "yes"
    return answer


def value_of(fact: Fact, rng: random.Random) -> Value:
    """A fact's value; numbers are strings now and then."""
    number = isinstance(fact.value, int) and not isinstance(fact.value, bool)
    return str(fact.value) if number and rng.random() < 0.1 else fact.value


def any_key(rng: random.Random) -> str:
    """A key that says nothing, or something made up."""
    return rng.choice((ANSWER, *ANY)) if rng.random() < 0.8 else made_up(rng)


def key_for(attribute: str, rng: random.Random) -> str:
    """A key that says what its value is."""
    return rng.choice(PARAMETERS[attribute]) if rng.random() < 0.5 else PARAMETERS[attribute][0]


def keyed(facts: list[Fact], rng: random.Random) -> dict[str, Value]:
    """Facts under keys that say what they are."""
    out: dict[str, Value] = {}
    for fact in facts:
        out.setdefault(key_for(fact.attribute, rng), value_of(fact, rng))
    return out


def forced_answer(turn: Turn, rng: random.Random) -> Segment:
    """A plain question, its answer under a key that a schema gives; or under ANSWER, where any object would do."""
    if rng.random() < 0.25:
        reply = Reply("json", tuple(members({ANSWER: typed(turn[1], rng)}, rng, forced=False)[1:]))
        reply = Reply("json", (('{"', False), *reply.pieces))
    else:
        key = any_key(rng) if rng.random() < 0.6 else rng.choice(rng.choice(list(PARAMETERS.values())))
        reply = Reply("json", tuple(members({key: typed(turn[1], rng)}, rng, forced=True)))
    return Segment().said(put(turn[0], rng), reply)


def asked_answer(turn: Turn, rng: random.Random) -> Segment:
    """A question with the wish for JSON, with a key or without one."""
    question = put(turn[0], rng)
    question = question if question[-1] in "?.!" else question + "."
    if rng.random() < 0.5:
        key, asked = ANSWER, rng.choice(IN_JSON).format(q=question)
    else:
        key = any_key(rng)
        asked = rng.choice(WITH_KEYS).format(q=question, k=f"key {key}")
    return Segment().said(asked, Reply("json", tuple(members({key: typed(turn[1], rng)}, rng, forced=False))))


def of_facts(scene: Scene, rng: random.Random) -> Segment:
    """Facts asked for by their words, under the keys that the words suggest; or a schema has keys of its own."""
    asked = pick(scene, rng, rng.choice((1, 2, 2, 3)))
    forced = rng.random() < 0.6
    words = joined(asked, rng)
    form = rng.choice(("Tell me {w}.", "What is {w}?", "Give {w}.", "{w}")) if forced else rng.choice(TELL)
    values = {}
    for fact in asked:
        name = key_for(fact.attribute, rng) if forced else PARAMETERS[fact.attribute][0]
        if fact.attribute == "colour" and not forced and "color" in fact.noun:
            name = "color"
        if name in values:
            break
        values[name] = value_of(fact, rng)
    if len(values) < len(asked):
        words = joined(asked[: len(values)], rng)
    return Segment().said(form.format(w=words), Reply("json", tuple(members(values, rng, forced))))


def of_one(scene: Scene, rng: random.Random) -> Segment | None:
    """Some attributes of one shape, under keys that a schema or the question gives."""
    found = about_one(scene, rng)
    if found is None:
        return None
    name, facts = found
    values = keyed(rng.sample(facts, rng.randint(1, len(facts))), rng)
    return with_keys(rng.choice(ABOUT).format(n=name), values, rng)


def of_picture(scene: Scene, rng: random.Random) -> Segment | None:
    """What is true of the whole picture, or of the only thing in it."""
    facts: dict[str, Value] = {}
    if scene.background:
        facts["background"] = scene.background
    if scene.chars:
        facts["number" if scene.text.isdigit() else "word"] = int(scene.text) if scene.text.isdigit() else scene.text
    if scene.chars and not scene.shapes:
        facts["colour"] = scene.chars[0].colour
    facts["shapes" if rng.random() < 0.5 or scene.text.isdigit() else "count"] = len(scene.shapes)
    if len(scene.shapes) == 1 and not scene.chars:
        item = scene.shapes[0]
        facts |= {"colour": item.colour, "shape": item.name, "size": item.size}
    names = rng.sample(list(facts), rng.randint(1, min(4, len(facts))))
    return with_keys(rng.choice(PICTURE), {name: facts[name] for name in names}, rng)


def with_keys(question: str, values: dict[str, Value], rng: random.Random) -> Segment:
    """The question alone and keys that are forced, or the keys in the question."""
    if rng.random() < 0.6:
        return Segment().said(question, Reply("json", tuple(members(values, rng, forced=True))))
    names = list(values)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    asked = rng.choice(WITH_KEYS).format(q=question, k=f"key{'s' * (len(names) > 1)} {listed}")
    return Segment().said(asked, Reply("json", tuple(members(values, rng, forced=False))))
