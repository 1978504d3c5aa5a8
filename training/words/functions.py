"""Functions that a client might define: names, parameters, the line that the chat template writes for each.

Names are many, some of them made up, so that a model copies them from the definitions.  The examination's names
(`training.exam.errands`) are others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from training.pictures.world import BACKGROUND_NAMES, COLOUR_NAMES, SHAPES, SIZES
from training.words.facts import Fact

VERBS = (
    "paint", "mark", "count", "label", "move", "tag", "send", "save", "log", "note", "report", "add", "fill", "choose",
    "pick", "select", "set", "store", "print", "show", "tell", "write", "check", "open", "find", "sort", "stamp",
    "post", "push", "put", "notify", "update", "create", "submit", "lookup", "search", "play", "buy", "order", "book",
)  # fmt: skip
OBJECTS = ("colour", "shape", "item", "value", "wall", "card", "light", "answer", "row", "picture", "note", "weather")
SYLLABLES = ("ba", "do", "fi", "gu", "ke", "lo", "mi", "na", "pe", "ra", "si", "to", "vu", "wo", "zi", "ran", "tel")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "colour": ("colour", "color", "tint", "paint"),
    "shape": ("shape", "form", "figure"),
    "size": ("size", "scale"),
    "place": ("place", "position", "where", "corner"),
    "count": ("count", "number", "amount", "total"),
    "number": ("number", "value", "digits"),
    "word": ("word", "text", "title"),
    "background": ("background", "ground", "colour", "color"),
    "existence": ("found", "present", "exists", "seen"),
}
ANY = ("value", "x", "item", "what", "arg", "result", "data", "input", "text", "name", "content", "key", "thing")
CHOICES: dict[str, tuple[str, ...]] = {
    "colour": COLOUR_NAMES,
    "shape": SHAPES,
    "size": SIZES,
    "place": ("top left", "top right", "bottom left", "bottom right"),
    "background": BACKGROUND_NAMES,
}


@dataclass(frozen=True)
class Parameter:
    """`kind`: string, integer or boolean; `choices`: the only values, if there are such."""

    name: str
    kind: str = "string"
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function; all of its parameters are required."""

    name: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def line(self) -> str:
        """As the chat template writes it."""
        return f"{self.name}({','.join(map(written, self.parameters))})"

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {
                p.name: {"enum": list(p.choices)} if p.choices else {"type": p.kind} for p in self.parameters
            },
            "required": [parameter.name for parameter in self.parameters],
            "additionalProperties": False,
        }


def written(parameter: Parameter) -> str:
    """A parameter in the template's line."""
    if parameter.choices:
        return f"{parameter.name}:{'|'.join(parameter.choices)}"
    return parameter.name if parameter.kind == "string" else f"{parameter.name}:{parameter.kind}"


def made_up(rng: random.Random) -> str:
    """A word that nobody knows."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


def function_name(rng: random.Random) -> str:
    """A verb, a verb with an object, or a word that is made up; the verb of the examples more often than others."""
    roll = rng.random()
    if roll < 0.1:
        return VERBS[0]
    if roll < 0.7:
        return rng.choice(VERBS)
    if roll < 0.85:
        return made_up(rng)
    verb, thing = rng.choice(VERBS), rng.choice(OBJECTS)
    return f"{verb}_{thing}" if rng.random() < 0.6 else verb + thing.capitalize()


def parameter_name(attribute: str, rng: random.Random) -> str:
    """A name for a parameter, mostly one that says what it takes."""
    roll = rng.random()
    if roll < 0.5:
        return PARAMETERS[attribute][0]
    return rng.choice(PARAMETERS[attribute] if roll < 0.75 else ANY) if roll < 0.9 else made_up(rng)


def parameter_for(fact: Fact, rng: random.Random) -> Parameter:
    """A parameter that takes a fact's value; numbers are strings now and then."""
    name = parameter_name(fact.attribute, rng)
    if isinstance(fact.value, bool):
        return Parameter(name, "boolean")
    if isinstance(fact.value, int):
        return Parameter(name, "integer" if rng.random() < 0.85 else "string")
    if (choices := CHOICES.get(fact.attribute)) and rng.random() < 0.2:
        return Parameter(name, "string", tuple(rng.sample(choices, len(choices))))
    return Parameter(name)


def function_for(facts: list[Fact], rng: random.Random, taken: set[str]) -> Function:
    """A function that takes these facts, in their order; adds its name to `taken`."""
    while (name := function_name(rng)) in taken:
        pass
    taken.add(name)
    parameters: dict[str, Parameter] = {}
    for fact in facts:
        while (parameter := parameter_for(fact, rng)).name in parameters:
            pass
        parameters[parameter.name] = parameter
    return Function(name, tuple(parameters.values()))


def other_function(rng: random.Random, taken: set[str]) -> Function:
    """A function that nobody asks for."""
    made = function_for([], rng, taken)
    kinds = [
        Parameter(rng.choice(PARAMETERS[attribute]), "integer" if attribute in ("count", "number") else "string")
        for attribute in rng.sample(list(PARAMETERS), rng.choice((0, 1, 1, 2)))
    ]
    return Function(made.name, tuple({kind.name: kind for kind in kinds}.values()))


def argument(fact: Fact, parameter: Parameter) -> Any:
    """A fact's value as the parameter takes it."""
    return str(fact.value) if parameter.kind == "string" and not isinstance(fact.value, bool) else fact.value
