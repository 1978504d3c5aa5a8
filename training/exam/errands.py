"""Calls and JSON on held-out drawings: names, phrasings, layouts, papers and typefaces that training has not.

Every sample can be asked through each protocol (`training.exam.protocols`).  What is expected is canonical text: a call
as its name and its arguments, an object as JSON with sorted keys.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from training.exam import heldout
from training.pictures.scenes import Scene
from training.sample import Sample, Studio, user
from training.words.calling import DID, arguments_of
from training.words.facts import Fact, about_one, joined, of_item, pick
from training.words.functions import CHOICES, Function, Parameter
from training.words.objects import ANSWER
from training.words.questions import ASK

NAMES = ("highlight", "register", "publish", "annotate", "record", "dye", "beep", "archive", "draw_line", "setLamp")
PARAMETERS = ("shade", "entry", "payload", "subject", "detail", "hint", "option", "field")
CALL = "Call {f} with {w}."
OTHER_CALLS = ("Make a call to {f} with {w}.", "Now call {f}, giving it {w}.", "Would you call {f} with {w}?",
               "Take {w} and call {f} with that.")  # fmt: skip
ATTRIBUTES = ("colour", "shape", "size", "place", "count", "number", "word", "background")


@dataclass(frozen=True)
class Errand(Sample):
    """A sample with functions or a schema.  `forced`: the request demands a call; `strict`: calls must be of these
    functions."""

    functions: tuple[Function, ...] = ()
    schema: dict[str, Any] | None = None
    forced: bool = False
    strict: bool = False


def said_call(name: str, arguments: dict[str, Any]) -> str:
    """A call as canonical text."""
    return f"{name} {said(arguments)}"


def said(value: Any) -> str:
    """A JSON value as canonical text."""
    return json.dumps(value, sort_keys=True)


def plain_parameter(fact: Fact) -> Parameter:
    """A parameter with the attribute's own name."""
    kind = "boolean" if isinstance(fact.value, bool) else "integer" if isinstance(fact.value, int) else "string"
    return Parameter(fact.attribute, kind)


def facts_of(scene: Scene, rng: random.Random, count: int) -> list[Fact] | None:
    """So many facts with different attributes, existence left out."""
    found = [fact for fact in pick(scene, rng, 8) if fact.attribute in ATTRIBUTES]
    first = {fact.attribute: fact for fact in found}
    return list(first.values())[:count] if len(first) >= count else None


def colour_of_shape(scene: Scene, rng: random.Random) -> list[Fact]:
    """The colour of a shape whose name says which."""
    found = [fact for item in scene.shapes for fact in of_item(item, scene, rng) if fact.attribute == "colour"]
    return [rng.choice(found)] if found else []


def calling(kind: str, scene: Scene, rng: random.Random) -> tuple[str, list[Function], str, bool] | None:
    """Question, functions, expected text and whether a call is demanded."""
    asked = colour_of_shape(scene, rng) if kind == "paint" else facts_of(scene, rng, 2 if kind == "two values" else 1)
    if not asked:
        return None
    names = rng.sample(NAMES, 3) if kind in ("new names", "several") else ["paint"]
    parameters = [plain_parameter(fact) for fact in asked]
    if kind == "new names":
        parameters = [Parameter(rng.choice(PARAMETERS), p.kind) for p in parameters]
    function = Function(names[0], tuple(parameters))
    functions = [function]
    if kind == "several":
        functions += [Function(name, (Parameter(rng.choice(ATTRIBUTES[:4])),)) for name in names[1:]]
        rng.shuffle(functions)
    form = rng.choice(OTHER_CALLS) if kind == "new names" else CALL
    question, expected = (
        form.format(f=function.name, w=joined(asked, rng)),
        said_call(function.name, arguments_of(function, asked)),
    )
    if kind == "demanded":
        question = f"What is {asked[0].phrase}?"
    return question, functions, expected, kind == "demanded"


def schema_of(facts: dict[str, Fact], choices: bool) -> dict[str, Any]:
    """A schema with a property for every fact, enumerated or not."""
    properties: dict[str, Any] = {}
    for key, fact in facts.items():
        values = CHOICES.get(fact.attribute) if choices else None
        kind = "integer" if isinstance(fact.value, int) else "string"
        properties[key] = {"enum": list(values)} if values else {"type": kind}
    return {"type": "object", "properties": properties, "required": list(facts), "additionalProperties": False}


def of_schema(kind: str, scene: Scene, rng: random.Random) -> tuple[str, dict[str, Any], str] | None:
    """Question, schema and expected text."""
    if kind == "answer":
        asked = rng.choice(("colour", "shape", "count", "number", "word", "background", "size"))
        turn = ASK[asked](scene, rng)
        if turn is None:
            return None
        number = turn[1].isdigit()
        if number and turn[1] != str(int(turn[1])):
            return None
        fact = Fact(asked, "", "", int(turn[1]) if number else turn[1])
        return turn[0], schema_of({ANSWER: fact}, choices=rng.random() < 0.5), said({ANSWER: fact.value})
    if kind == "thing":
        found = about_one(scene, rng)
        if found is None:
            return None
        name, facts = found
        chosen = {fact.attribute: fact for fact in rng.sample(facts, min(len(facts), rng.choice((2, 3))))}
        question = f"Describe {name}."
    else:
        facts = facts_of(scene, rng, rng.choice((1, 2))) or []
        chosen = {fact.attribute: fact for fact in facts}
        question = f"What is {joined(facts, rng)}?" if facts else ""
    if not chosen:
        return None
    return question, schema_of(chosen, rng.random() < 0.5), said({key: fact.value for key, fact in chosen.items()})


def beside(scene: Scene, rng: random.Random) -> tuple[str, str] | None:
    """An ordinary question and its answer."""
    return ASK[rng.choice(("colour", "shape", "count", "size", "existence", "background"))](scene, rng)


def draw_call(kind: str, seed: int, studio: Studio) -> Errand | None:
    """The sample of a seed with functions, or None where the scene does not allow the kind."""
    rng = random.Random(seed)
    scene = studio.scene(seed * 2, None)
    made = calling("value" if kind in ("no call", "result") else kind, scene, rng)
    if made is None:
        return None
    question, functions, expected, forced = made
    if kind == "no call":
        turn = beside(scene, rng)
        if turn is None:
            return None
        question, expected = turn
    image = studio.photograph(scene, rng)
    messages = [user(question, image)]
    if kind == "result":
        name, _, arguments = expected.partition(" ")
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": rng.choice(("ok", "saved"))},
        ]
        expected = DID
    return Errand(kind, messages, [image[0]], expected, tuple(functions), None, forced, kind in STRICT)


def draw_object(kind: str, seed: int, studio: Studio) -> Errand | None:
    """The sample of a seed with a schema, or None where the scene does not allow the kind."""
    rng = random.Random(seed)
    scene = studio.scene(seed * 2, None)
    made = of_schema(kind, scene, rng)
    if made is None:
        return None
    question, schema, expected = made
    image = studio.photograph(scene, rng)
    return Errand(kind, [user(question, image)], [image[0]], expected, (), schema)


PAINT = ("paint",)
"""Call paint with the colour of the circle."""
CALLS = ("value", "new names", "several", "two values", "no call", "demanded", "result")
"""Kinds in turn.  value: anything that can be asked of a picture; demanded: a plain question and `tool_choice`
required."""
STRICT = ("new names", "several")
"""Kinds whose functions are strict, as a client should say whose names the model may not spell."""
OBJECTS = ("answer", "facts", "thing")
Draw = Callable[[str, int, Studio], Errand | None]


def errands(kinds: tuple[str, ...], draw: Draw, count: int, first: int) -> Iterator[Errand]:
    """So many samples from a seed on, kinds in turn."""
    for index in range(count):
        for attempt in range(1000):
            made = draw(kinds[index % len(kinds)], first + index * 1000 + attempt, heldout.STUDIO)
            if made:
                yield made
                break


def paint(count: int, first: int) -> Iterator[Errand]:
    """Samples that ask to call paint with the colour of a shape."""
    return errands(PAINT, draw_call, count, first)


def calls(count: int, first: int) -> Iterator[Errand]:
    """Samples with functions of all kinds."""
    return errands(CALLS, draw_call, count, first)


def objects(count: int, first: int) -> Iterator[Errand]:
    """Samples with a schema."""
    return errands(OBJECTS, draw_object, count, first)
