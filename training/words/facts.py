"""Single facts of a scene, each with the words that ask for it: "the colour of the circle" is "green".

Calls and JSON answers are made of these.  A fact is never in doubt: its words mean one thing in the scene.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from training.pictures.scenes import Item, Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.words.phrases import named, noun, plural, quarter, spelled, tally

Value = str | int | bool


@dataclass(frozen=True)
class Fact:
    """`attribute`: one of WEIGHTS; `noun` and `subject`: the words for it; `value`: what is true."""

    attribute: str
    noun: str
    subject: str
    value: Value

    @property
    def phrase(self) -> str:
        """The words that ask for it."""
        return f"{self.noun} of {self.subject}" if self.subject else self.noun


WEIGHTS = {
    "colour": 5.0,
    "shape": 3.0,
    "size": 3.0,
    "place": 2.5,
    "count": 3.0,
    "number": 3.0,
    "word": 2.5,
    "background": 1.5,
    "existence": 1.5,
}


def names_of(item: Item, scene: Scene) -> list[str]:
    """Unambiguous words for an item, without "the"."""
    same = [other for other in scene.shapes if other.name == item.name]
    out = [item.name] if len(same) == 1 else []
    if sum(other.colour == item.colour for other in same) == 1:
        out.append(f"{item.colour} {item.name}")
    if not scene.chars and sum(other.colour == item.colour for other in scene.shapes) == 1:
        out += [f"{item.colour} object", f"{item.colour} shape"]
    return out


def of_item(item: Item, scene: Scene, rng: random.Random) -> list[Fact]:
    """What can be asked about one shape, each fact by words that do not say it."""
    names = names_of(item, scene)
    blind = [name for name in names if item.colour not in name]
    tinted = [name for name in names if item.name not in name]
    out = []
    if blind:
        out.append(Fact("colour", f"the {spelled(rng)}", f"the {rng.choice(blind)}", item.colour))
    if tinted:
        out.append(Fact("shape", "the shape", f"the {rng.choice(tinted)}", item.name))
    if names:
        name = f"the {rng.choice(names)}"
        out.append(Fact("size", "the size", name, item.size))
        if place := quarter(item):
            out.append(Fact("place", rng.choice(("the place", "the position")), name, place))
    return out


def counted(scene: Scene, rng: random.Random) -> Fact:
    """How many shapes there are: in all, of a shape, of a colour, or both."""
    picked = rng.choice(scene.shapes) if scene.shapes else None
    tint = picked.colour if picked and rng.random() < 0.5 else None
    name = picked.name if picked and rng.random() < 0.6 else None
    if name and rng.random() < 0.1:
        name = rng.choice(SHAPES)
    what = " ".join(filter(None, (tint, plural(name) if name else "shapes")))
    return Fact("count", "the number", what, tally(scene, tint, name))


def existing(scene: Scene, rng: random.Random) -> Fact:
    """Whether there is a shape of a colour, true half of the time where that can be."""
    if scene.shapes and rng.random() < 0.5:
        item = rng.choice(scene.shapes)
        tint, name = item.colour, item.name
    else:
        tint, name = rng.choice(COLOUR_NAMES), rng.choice(SHAPES)
    if rng.random() < 0.5:
        return Fact("existence", f"whether there is a {name}", "", tally(scene, None, name) > 0)
    article = "an" if tint[0] in "aeiou" else "a"
    return Fact("existence", f"whether there is {article} {tint} {name}", "", tally(scene, tint, name) > 0)


def written(scene: Scene, rng: random.Random) -> list[Fact]:
    """What is written, and its colour."""
    if not scene.chars:
        return []
    what = noun(scene)
    phrase = rng.choice((f"the {what}", f"the written {what}", f"the {what} in the picture"))
    value: Value = int(scene.text) if what == "number" else scene.text
    return [Fact(what, phrase, "", value), Fact("colour", f"the {spelled(rng)}", f"the {what}", scene.chars[0].colour)]


def all_facts(scene: Scene, rng: random.Random) -> list[Fact]:
    """Everything that can be asked in one way or another; several facts may be about one thing."""
    out = [fact for item in scene.shapes for fact in of_item(item, scene, rng)]
    out += [*written(scene, rng), counted(scene, rng), existing(scene, rng)]
    if scene.background:
        words = rng.choice((f"the background {spelled(rng)}", f"the {spelled(rng)} of the background"))
        out.append(Fact("background", words, "", scene.background))
    return out


def pick(scene: Scene, rng: random.Random, count: int = 1) -> list[Fact]:
    """Some different facts (fewer if there are no more), attributes drawn by weight."""
    left = all_facts(scene, rng)
    many = Counter(fact.attribute for fact in left)
    out: list[Fact] = []
    while left and len(out) < count:
        fact = rng.choices(left, [WEIGHTS[f.attribute] / many[f.attribute] for f in left])[0]
        left.remove(fact)
        out.append(fact)
    return out


def about_one(scene: Scene, rng: random.Random) -> tuple[str, list[Fact]] | None:
    """A shape's name ("the red circle") and its facts, its own name and colour too; None without such a shape."""
    found = named(scene, rng)
    if not found:
        return None
    item, name = rng.choice(found)
    subject = name.removeprefix("the ")
    out = [Fact("colour", "the colour", name, item.colour), Fact("shape", "the shape", name, item.name)]
    out.append(Fact("size", "the size", name, item.size))
    if place := quarter(item):
        out.append(Fact("place", "the place", name, place))
    return f"the {subject}", out


def joined(asked: list[Fact], rng: random.Random) -> str:
    """The words for several facts: "the colour and the size of the circle", "the word and the number of stars"."""
    if len(asked) > 1 and len({fact.subject for fact in asked}) == 1 and asked[0].subject and rng.random() < 0.7:
        nouns = [fact.noun for fact in asked]
        return f"{', '.join(nouns[:-1])} and {nouns[-1]} of {asked[0].subject}"
    phrases = [fact.phrase for fact in asked]
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
