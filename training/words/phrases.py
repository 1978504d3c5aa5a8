"""How things are named, without doubt: the phrases that questions are made of, and the facts behind them."""

from __future__ import annotations

import random
from collections import Counter

from training.pictures.scenes import Item, Scene

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
CLEAR = 0.14  # of a side: the least offset for left/right/above/below
MIDDLE = 0.07  # of a side: objects this close to a middle line have no quarter


def plural(shape: str) -> str:
    """crosses, stars."""
    return shape + ("es" if shape.endswith("s") else "s")


def spelled(rng: random.Random) -> str:
    """colour, sometimes color."""
    return "colour" if rng.random() < 0.6 else "color"


def only(scene: Scene, shape: str) -> Item | None:
    """The scene's single object of a shape."""
    found = [item for item in scene.shapes if item.name == shape]
    return found[0] if len(found) == 1 else None


def named(scene: Scene, rng: random.Random) -> list[tuple[Item, str]]:
    """Objects that a phrase names without doubt, with that phrase, in random order."""
    shapes = Counter(item.name for item in scene.shapes)
    colours = Counter(item.colour for item in scene.shapes)
    pairs = Counter((item.name, item.colour) for item in scene.shapes)
    out = []
    for item in rng.sample(scene.shapes, len(scene.shapes)):
        phrases = []
        if shapes[item.name] == 1:
            phrases += [f"the {item.name}"] * 2
        if pairs[item.name, item.colour] == 1:
            phrases += [f"the {item.colour} {item.name}"] * 2
        if colours[item.colour] == 1 and not scene.chars:
            phrases += [f"the {item.colour} {rng.choice(('shape', 'object'))}"]
        if phrases:
            out.append((item, rng.choice(phrases)))
    return out


def noun(scene: Scene) -> str:
    """What the writing is called."""
    return "number" if scene.text.isdigit() else "word"


def quarter(item: Item) -> str | None:
    """top left and so on; None near the middle lines."""
    if abs(item.x - 0.5) < MIDDLE or abs(item.y - 0.5) < MIDDLE:
        return None
    return f"{'top' if item.y < 0.5 else 'bottom'} {'left' if item.x < 0.5 else 'right'}"


def tally(scene: Scene, colour_name: str | None, shape_name: str | None) -> int:
    """How many objects match."""
    return sum(
        item.colour == (colour_name or item.colour) and item.name == (shape_name or item.name) for item in scene.shapes
    )
