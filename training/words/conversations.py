"""Conversations: follow-ups on one picture, questions on two pictures, turns without a picture.

A conversation is a list of turns; a turn's question may be preceded by pictures.  Phrasing varies by the generator
given; answers are exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from training.pictures.scenes import Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.words import questions
from training.words.phrases import only, plural, quarter, spelled, tally
from training.words.questions import ASK, Turn

NO_PICTURE = "I see no picture. Please send one."
SMALL_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello!", "Hi!", "Hello", "Hi there!", "Good morning!"), "Hello! Send me a picture and ask about it."),
    (("Who are you?", "What are you?", "What is your name?"), "I am a tiny model that looks at simple pictures."),
    (
        ("What can you do?", "How can you help me?", "What do you know?"),
        "I can name shapes, colours, numbers and words in simple pictures.",
    ),
    (("Thank you!", "Thanks!", "Thank you.", "Thanks a lot."), "You are welcome."),
    (("Goodbye!", "Bye!", "See you later."), "Goodbye!"),
    (("How are you?", "How do you do?"), "I am fine, thank you."),
    (("Which shapes do you know?", "What shapes can you see?"), "circle, square, triangle, star, cross and diamond"),
    (
        ("Which colours do you know?", "Which colors can you name?"),
        "red, orange, yellow, green, blue, purple, pink and brown",
    ),
    (
        ("Write a poem.", "Tell me a joke.", "What is the weather like?", "Who won the game?"),
        "Sorry, I only know simple pictures.",
    ),
)
COMPARISONS = ("more", "has", "ground", "shape")
WHICH = COMPARISONS[:2]
"""Those that ask for a picture, not for what is in it."""
SYSTEMS = ("You are a helpful assistant.", "Answer briefly.", "You answer questions about pictures.", "Be polite.")


def again(scene: Scene, rng: random.Random, turn: Turn, kind: str) -> Turn | None:
    """A short question that needs the turn before it."""
    question, answer = turn
    singles = [item for item in scene.shapes if only(scene, item.name) is item]
    if kind == "colour":
        about = [item for item in singles if f"the {item.name}" in question]
        others = [item for item in singles if item not in about]
        if about and (not others or rng.random() < 0.4):
            return rng.choice(("Is it small or large?", "What size is it?", "How big is it?")), about[0].size
        if others:
            other = rng.choice(others)
            return rng.choice((f"And the {other.name}?", f"What about the {other.name}?")), other.colour
    if kind == "shape":
        item = next(item for item in scene.shapes if item.name == answer and f" {item.colour}" in question)
        if (place := quarter(item)) and rng.random() < 0.5:
            return rng.choice(("Where is it?", "Where do you see it?")), place
        return rng.choice(("Is it small or large?", "What size is it?", "How big is it?")), item.size
    if kind == "count":
        name = next((name for name in SHAPES if plural(name) in question), None)
        tints = sorted({item.colour for item in scene.shapes})
        if name and tints and any(f" {tint} " in question for tint in COLOUR_NAMES):
            tint = rng.choice(tints)
            return rng.choice((f"And how many {tint} ones?", f"And {tint} ones?")), str(tally(scene, tint, name))
        if scene.shapes and not any(f" {tint} " in question for tint in COLOUR_NAMES):
            other = rng.choice([item.name for item in scene.shapes if plural(item.name) not in question] or SHAPES)
            return rng.choice((f"And how many {plural(other)}?", f"And {plural(other)}?")), str(
                tally(scene, None, other)
            )
    if kind in ("number", "word"):
        return rng.choice((f"What {spelled(rng)} is it?", f"Which {spelled(rng)} is it written in?")), scene.chars[
            0
        ].colour
    return None


def follow_up(scene: Scene, rng: random.Random) -> list[Turn] | None:
    """Two turns, the second leaning on the first."""
    kinds = ["colour", "shape", "count", "number", "word"]
    rng.shuffle(kinds)
    for kind in kinds:
        first = ASK[kind](scene, rng)
        second = first and again(scene, rng, first, kind)
        if first and second:
            return [first, second]
    return None


def of_one(scene: Scene, rng: random.Random, place: str) -> Turn | None:
    """A question about one of two pictures, `place` being "first" or "second"."""
    kind = rng.choice(("colour", "count", "background", "number", "word", "shape", "background"))
    turn = ASK[kind](scene, rng)
    if turn is None:
        return None
    question, answer = turn
    picture = rng.choice((f"in the {place} picture", f"in the {place} image"))
    if kind == "background":
        question = f"What {spelled(rng)} is the background {picture}?"
    elif question.startswith(("Count", "Read", "Tell")) or "picture" in question or "do you see" in question:
        simple = {"number": "What number is shown", "word": "What word is shown"}
        if kind not in simple:
            return None
        question = f"{simple[kind]} {picture}?"
    else:
        question = question.rstrip("?").removesuffix(" are there") + (
            f" are {picture}?" if kind == "count" else f" {picture}?"
        )
    return question, answer


def of_both(a: Scene, b: Scene, rng: random.Random, ways: Sequence[str] = COMPARISONS) -> Turn | None:
    """A question that compares two pictures in one of some ways; None where the scenes do not allow it."""
    way = rng.choice(ways)
    if way == "more":
        more = rng.random() < 0.5
        if len(a.shapes) == len(b.shapes):
            return None
        first = (len(a.shapes) > len(b.shapes)) == more
        return f"Which picture has {'more' if more else 'fewer'} shapes?", "the first" if first else "the second"
    if way == "ground":
        if not (a.background and b.background):
            return None
        return "Do both pictures have the same background?", "yes" if a.background == b.background else "no"
    name = rng.choice(SHAPES)
    here, there = tally(a, None, name) > 0, tally(b, None, name) > 0
    if way == "shape":
        return f"Is there a {name} in both pictures?", "yes" if here and there else "no"
    if here == there:
        return None
    return rng.choice(
        (f"Which picture has a {name}?", f"Which picture shows a {name}?")
    ), "the first" if here else "the second"


def two_pictures(a: Scene, b: Scene, rng: random.Random) -> Turn:
    """Any question on two pictures."""
    while True:
        turn = of_both(a, b, rng) if rng.random() < 0.45 else None
        if turn is None:
            place = rng.choice(("first", "second"))
            turn = of_one(a if place == "first" else b, rng, place)
        if turn:
            return turn


def second_scene(first: Scene, rng: random.Random, scene: Scene) -> Scene:
    """The second scene of a pair, half of the time on the first one's background colour."""
    if rng.random() < 0.4 and first.background and not scene.chars:
        scene.background = first.background
    return scene


def single(scene: Scene, rng: random.Random, weights: dict[str, float]) -> tuple[str, Turn]:
    """A (kind, turn) on one picture, kinds drawn by weight among those the scene allows."""
    kinds = list(weights)
    while True:
        kind = rng.choices(kinds, [weights[k] for k in kinds])[0]
        turn = ASK[kind](scene, rng)
        if turn:
            return kind, turn


def text_turn(rng: random.Random, scene: Scene) -> Turn:
    """Small talk, or a question on a picture that never came."""
    if rng.random() < 0.5:
        kind = rng.choice([k for k in questions.ASK if k != "number" and k != "word"] + ["number", "word"])
        turn = ASK[kind](scene, rng)
        if turn:
            return turn[0], NO_PICTURE
    phrasings, answer = rng.choice(SMALL_TALK)
    return rng.choice(phrasings), answer
