"""Questions on one of several pictures, on which picture shows a shape, and on the newest picture.

A wrong picture gives a wrong answer: what is asked of one picture has another answer in another picture of the prompt.
`samples` are held-out questions in OpenAI's chat format.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from training import sample
from training.pictures.scenes import Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.qwen3_vl.pictures import scene, stands_apart
from training.qwen3_vl.questions import side
from training.sample import FIRST_SEED, Message, Sample
from training.words import questions
from training.words.phrases import tally
from training.words.questions import Turn

PLACES = ("first", "second", "third")
HELD_OUT = ("colour of one", "shape of one", "which picture", "side in the newest")
NUMBER = 11  # keeps the seeds of held-out questions apart from those of training.qwen3_vl.questions


def of_one(kind: str, scenes: Sequence[Scene], rng: random.Random) -> Turn | None:
    """The colour or shape of a thing in one picture, where another picture has such a thing with another answer."""
    index = rng.randrange(len(scenes))
    turn = questions.ASK[kind](scenes[index], rng)
    if turn is None or turn[0].startswith("Tell"):
        return None
    question, answer = turn
    thing = next(word for word in (*SHAPES, *COLOUR_NAMES) if word in question)
    others = [item for other, made in enumerate(scenes) if other != index for item in made.shapes]
    if all(thing not in (item.name, item.colour) or answer in (item.name, item.colour) for item in others):
        return None
    place = f"the {PLACES[index]} picture"
    forms = (f"In {place}, {question[0].lower()}{question[1:]}", f"Look at {place}. {question}")
    return rng.choice(forms), answer


def which(scenes: Sequence[Scene], rng: random.Random) -> Turn | None:
    """The only picture that has a shape."""
    found = [[index for index, made in enumerate(scenes) if tally(made, None, name)] for name in SHAPES]
    options = [(name, places[0]) for name, places in zip(SHAPES, found, strict=True) if len(places) == 1]
    if not options:
        return None
    name, index = rng.choice(options)
    return f"Which picture {rng.choice(('has', 'shows'))} a {name}?", f"the {PLACES[index]}"


def asked(kind: str, scenes: Sequence[Scene], rng: random.Random) -> Turn | None:
    """A question of a kind of HELD_OUT. A side is asked of the last picture, as after another turn."""
    if kind == "which picture":
        return which(scenes, rng)
    if kind == "side in the newest":
        return side(scenes[-1], rng)
    return of_one(kind.removesuffix(" of one"), scenes, rng)


def draw_one(kind: str, seed: int) -> Sample | None:
    """The sample of a seed, with two or three pictures, or None where its scenes do not allow the kind."""
    rng = random.Random(seed)
    made = [scene(seed * 4 + index) for index in range(rng.choice((2, 3)))]
    turn = asked(kind, made, rng)
    before = questions.colour(made[0], rng)
    if turn is None or before is None:
        return None
    images = [sample.photograph(one, rng) for one in made]
    if kind == "side in the newest":
        messages: list[Message] = [sample.user(before[0], images[0]), sample.assistant(before[1])]
        if len(made) == 3:
            middle = questions.shape(made[1], rng)
            if middle is None:
                return None
            messages += [sample.user(middle[0], images[1]), sample.assistant(middle[1])]
        messages.append(sample.user(turn[0], images[-1]))
    else:
        messages = [sample.user(turn[0], *images)]
    return Sample(kind, messages, [image[0] for image in images], turn[1]) if all(map(stands_apart, made)) else None


def samples(n: int, seed: int, kinds: Sequence[str] = HELD_OUT) -> Iterator[Sample]:
    """n held-out samples from seeds that training never uses; the kinds come in turn."""
    for index in range(n):
        first = FIRST_SEED * (NUMBER + 2) + (seed * 1_000_000 + index) * 1000
        drawn = (draw_one(kinds[index % len(kinds)], first + attempt) for attempt in range(1000))
        yield next(found for found in drawn if found)
