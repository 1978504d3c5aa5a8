"""Prompts of every sort, to see that answers end by themselves: all the other sets, typing errors, and text that the
model was never made for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from training.exam import brush, heldout, honesty
from training.pictures.scenes import make_scene
from training.sample import CLASSIC, KINDS, Message, Sample, Studio, draw_one, user

SCRAPS = (
    "aaaaaaaaaaaaaaaaaaaaaaaa", "?", ".", "0 0 0 0 0 0 0 0", "red red red red", "the the the", "count count count",
    "Repeat after me: star star", "{}[]();:", "SELECT * FROM shapes;", "Qu'est-ce que c'est?", "Что это такое?",
    "これは何", "one, two, three, four,", "ZZZZQQQXXX", "and and and and", "🙂🙂🙂", "Say the alphabet.", "no no no",
    "Write a very long story without an end.", "Count from one to one hundred.", "What is what is what is", "L A M P",
    "999999999999",
)  # fmt: skip


def mistyped(text: str, rng: random.Random) -> str:
    """Letters swapped, left out or doubled here and there."""
    letters = list(text)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(("", letters[at] * 2, rng.choice("abcdefghijklmnopqrstuvwxyz ")))
    return "".join(letters) or "?"


def scrap(seed: int, rng: random.Random) -> Sample:
    """Nonsense, with or without a picture."""
    text = " ".join(rng.choice(SCRAPS) for _ in range(rng.choice((1, 1, 2, 6))))
    images = [CLASSIC.photograph(make_scene(seed), rng)] if rng.random() < 0.5 else []
    messages: list[Message] = [user(text, *images)]
    return Sample("nonsense", messages, [image[0] for image in images], "")


def typed(question: str, rng: random.Random) -> str | None:
    """How a hasty person puts a question."""
    return mistyped(question, rng)


STUDIOS = (
    heldout.STUDIO,
    brush.STUDIO,
    CLASSIC,
    Studio(CLASSIC.scene, CLASSIC.photograph, typed),
    Studio(heldout.STUDIO.scene, heldout.STUDIO.photograph, typed),
)
NAMES = ("held-out", "brush", "classic", "mistyped", "mistyped")


def samples(count: int, first: int) -> Iterator[Sample]:
    """`count` prompts; `kind` says of which sort."""
    for index in range(count):
        seed, sort = first + index * 1000, index % (len(STUDIOS) + 2)
        rng = random.Random(seed)
        if sort == len(STUDIOS):
            yield replace(honesty.one(rng.randrange(200), seed), kind="unanswerable")
        elif sort > len(STUDIOS):
            yield scrap(seed, rng)
        else:
            kind = rng.choice(KINDS)
            drawn = (draw_one(kind, seed + attempt, STUDIOS[sort]) for attempt in range(1000))
            yield replace(next(sample for sample in drawn if sample), kind=NAMES[sort])
