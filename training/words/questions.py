"""Questions about one scene and their exact answers, by kind.

Every function takes a scene and a random generator and returns one (question, answer), or None when the scene does not
allow such a question (no unique object, positions too close).  Two pictures, follow-ups and turns without a picture
are in `training.words.conversations`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from training.pictures.scenes import Scene
from training.pictures.world import BACKGROUND_NAMES, COLOUR_NAMES, SHAPES
from training.words.phrases import CLEAR, NUMBERS, named, noun, only, plural, quarter, spelled, tally

Turn = tuple[str, str]


def colour(scene: Scene, rng: random.Random) -> Turn | None:
    """The colour of the only object of a shape, of a shape's objects if they agree, or of the writing."""
    groups: dict[str, set[str]] = {}
    for item in scene.shapes:
        groups.setdefault(item.name, set()).add(item.colour)
    options = [name for name, colours in groups.items() if len(colours) == 1]
    word = spelled(rng)
    if scene.chars and (not options or rng.random() < 0.5):
        return rng.choice(
            (f"What {word} is the {noun(scene)}?", f"Which {word} is the {noun(scene)} written in?")
        ), scene.chars[0].colour
    if not options:
        return None
    name = rng.choice(options)
    answer = next(iter(groups[name]))
    if only(scene, name) is None:
        return rng.choice((f"What {word} are the {plural(name)}?", f"Which {word} do the {plural(name)} have?")), answer
    forms = (
        f"What {word} is the {name}?",
        f"Which {word} is the {name}?",
        f"What is the {word} of the {name}?",
        f"Tell me the {word} of the {name}.",
    )
    return rng.choice(forms), answer


def shape(scene: Scene, rng: random.Random) -> Turn | None:
    """The shape of the only object of a colour."""
    counts = Counter(item.colour for item in scene.shapes)
    found = [item for item in scene.shapes if counts[item.colour] == 1]
    if not found:
        return None
    item = rng.choice(found)
    forms = (
        f"What shape is the {item.colour} object?",
        f"Which shape is {item.colour}?",
        f"What shape is the {item.colour} one?",
        f"What is the shape of the {item.colour} object?",
    )
    return rng.choice(forms), item.name


def size(scene: Scene, rng: random.Random) -> Turn | None:
    """Small or large."""
    names = named(scene, rng)
    if not names:
        return None
    item, name = names[0]
    return rng.choice((f"Is {name} small or large?", f"What size is {name}?", f"How big is {name}?")), item.size


def count(scene: Scene, rng: random.Random) -> Turn | None:
    """How many shapes of a colour, of a shape, of both, or in all; sometimes none."""
    way = rng.choice(("both", "shape", "colour", "all") if scene.shapes else ("all",))
    picked = rng.choice(scene.shapes) if scene.shapes else None
    tint = kind = None
    if picked and way in ("both", "colour"):
        tint = picked.colour if rng.random() < 0.88 else rng.choice(COLOUR_NAMES)
    if picked and way in ("both", "shape"):
        kind = picked.name if rng.random() < 0.88 else rng.choice(SHAPES)
    what = " ".join(filter(None, (tint, plural(kind) if kind else "shapes")))
    forms = (
        f"How many {what} are there?",
        f"How many {what} do you see?",
        f"How many {what} are in the picture?",
        f"Count the {what}.",
    )
    return rng.choice(forms), str(tally(scene, tint, kind))


def relation(scene: Scene, rng: random.Random) -> Turn | None:
    """Left, right, above, below: yes or no, or which of the two."""
    names = named(scene, rng)
    pairs = [(a, b) for a in names for b in names if a[0] is not b[0]]
    rng.shuffle(pairs)
    for (a, first), (b, second) in pairs:
        axis = rng.choice("xy")
        offset = a.x - b.x if axis == "x" else a.y - b.y
        if abs(offset) < CLEAR:
            continue
        words = ("left", "right") if axis == "x" else ("above", "below")
        answer = words[offset > 0]
        if rng.random() < 0.35:
            tail = "of " if axis == "x" else ""
            return f"Is {first} {words[0]} or {words[1]} {tail}{second}?", answer
        asked = rng.choice(words)
        joint = asked if axis == "y" else rng.choice((f"{asked} of", f"to the {asked} of"))
        return f"Is {first} {joint} {second}?", "yes" if asked == answer else "no"
    return None


def where(scene: Scene, rng: random.Random) -> Turn | None:
    """The quarter of the picture an object is in."""
    for item, name in named(scene, rng):
        if answer := quarter(item):
            forms = (f"Where is {name}?", f"In which part of the picture is {name}?", f"Where do you see {name}?")
            return rng.choice(forms), answer
    return None


def number(scene: Scene, rng: random.Random) -> Turn | None:
    """The written number."""
    if not scene.text.isdigit():
        return None
    forms = (
        "What number is shown?",
        "What number do you see?",
        "Which number is written?",
        "Read the number.",
        "What is the number?",
        "What is written in the picture?",
        "Read the text.",
    )
    return rng.choice(forms), scene.text


def word(scene: Scene, rng: random.Random) -> Turn | None:
    """The written word."""
    if not scene.text.isalpha():
        return None
    forms = (
        "What word is shown?",
        "What word do you see?",
        "Which word is written?",
        "Read the word.",
        "What does it say?",
        "What is written in the picture?",
        "Read the text.",
    )
    return rng.choice(forms), scene.text


def background(scene: Scene, rng: random.Random) -> Turn | None:
    """The background's colour, where it has one."""
    if not scene.background:
        return None
    tint = spelled(rng)
    forms = (
        f"What {tint} is the background?",
        f"Which {tint} is the background?",
        f"What is the background {tint}?",
        f"What {tint} is behind everything?",
    )
    return rng.choice(forms), scene.background


def existence(scene: Scene, rng: random.Random) -> Turn | None:
    """Whether something is there, yes half of the time; sometimes a question about a thing that is not there."""
    roll, wanted = rng.random(), rng.random() < 0.5
    absent = [name for name in SHAPES if tally(scene, None, name) == 0]
    if roll < 0.1 and absent:
        name = rng.choice(absent)
        return rng.choice(
            (f"What {spelled(rng)} is the {name}?", f"Where is the {name}?", f"Is the {name} small or large?")
        ), f"There is no {name}."
    if roll < 0.2:
        kind = rng.choice(("number", "word"))
        return rng.choice(
            (f"Is there a {kind} in the picture?", f"Do you see a {kind}?")
        ), "yes" if scene.chars and noun(scene) == kind else "no"
    options: list[tuple[str | None, str | None]]
    if roll < 0.4 and not scene.chars:
        options = [(tint, None) for tint in COLOUR_NAMES]
    elif roll < 0.65:
        options = [(None, name) for name in SHAPES]
    else:
        options = [(tint, name) for tint in COLOUR_NAMES for name in SHAPES]
        near = [o for o in options if tally(scene, o[0], None) or tally(scene, None, o[1])]
        options = near if near and rng.random() < 0.7 else options
    fitting = [o for o in options if (tally(scene, *o) > 0) == wanted]
    tint, name = rng.choice(fitting or options)
    answer = "yes" if tally(scene, tint, name) else "no"
    if name is None:
        return rng.choice((f"Is there anything {tint}?", f"Do you see anything {tint}?")), answer
    what = " ".join(filter(None, (tint, name)))
    article = "an" if what[0] in "aeiou" else "a"
    return rng.choice(
        (f"Is there {article} {what}?", f"Do you see {article} {what}?", f"Is there {article} {what} in the picture?")
    ), answer


def describe(scene: Scene, rng: random.Random) -> Turn | None:
    """What is there, in a fixed order: the writing, then groups by shape and colour (at most three)."""
    groups = Counter((SHAPES.index(item.name), COLOUR_NAMES.index(item.colour)) for item in scene.shapes)
    if len(groups) > 3 or len(groups) + bool(scene.chars) == 0:
        return None
    parts = [f"the {noun(scene)} {scene.text} in {scene.chars[0].colour}"] if scene.chars else []
    for (kind, tint), amount in sorted(groups.items()):
        name = SHAPES[kind] if amount == 1 else plural(SHAPES[kind])
        parts.append(f"{NUMBERS[amount]} {COLOUR_NAMES[tint]} {name}")
    answer = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    forms = (
        "Describe the picture.",
        "What is in the picture?",
        "What do you see?",
        "Describe this image.",
        "What does the picture show?",
    )
    return rng.choice(forms), answer


ASK: dict[str, Callable[[Scene, random.Random], Turn | None]] = {
    "colour": colour, "shape": shape, "size": size, "count": count, "relation": relation, "where": where,
    "number": number, "word": word, "background": background, "existence": existence, "describe": describe,
}  # fmt: skip
assert set(BACKGROUND_NAMES).isdisjoint(COLOUR_NAMES)
