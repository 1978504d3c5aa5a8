"""Held-out pictures and conversations with the exact expected answer, in OpenAI's chat format.

`samples` needs only pillow and numpy, so that tests and benchmarks can draw a picture and know what a right answer is.
Seeds are far from those of training.  Kinds come in turn, so that any number of samples is an even mix.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from training.pictures.drawing import draw_scene, encode
from training.pictures.scenes import Scene, make_scene
from training.words import conversations
from training.words.questions import ASK, Turn

KINDS = (*ASK, "follow-up", "two", "text")
Message = dict[str, Any]
FIRST_SEED = 10**12  # training's scenes stay below


@dataclass(frozen=True)
class Sample:
    """One question in its conversation; `images` are the encoded files in order, `answer` the exact text expected."""

    kind: str
    messages: list[Message]
    images: list[bytes]
    answer: str


File = tuple[bytes, str]


def photograph(scene: Scene, rng: random.Random) -> File:
    """The scene as a file, sometimes larger, as PNG or JPEG: (bytes, media type)."""
    scale = rng.choice((1, 1, 1, 1, 2, 3))
    scene.width, scene.height, scene.stroke = scene.width * scale, scene.height * scale, scene.stroke * scale
    kind = rng.choice(("PNG", "JPEG"))
    return encode(draw_scene(scene), kind, rng.randint(70, 95)), f"image/{kind.lower()}"


@dataclass(frozen=True)
class Studio:
    """Where samples come from: a scene by seed and content ("text" or any), its file, and how a question is put
    (None: not at all)."""

    scene: Callable[[int, str | None], Scene] = make_scene
    photograph: Callable[[Scene, random.Random], File] = photograph
    phrase: Callable[[str, random.Random], str | None] = lambda question, rng: question


CLASSIC = Studio()


def part(image: File) -> dict[str, Any]:
    """A content part that holds a picture as a data: URL."""
    url = f"data:{image[1]};base64,{base64.b64encode(image[0]).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def user(question: str, *images: File, first: bool = True) -> Message:
    """A user turn; pictures before the text, or after it."""
    if not images:
        return {"role": "user", "content": question}
    parts, text = [part(image) for image in images], {"type": "text", "text": question}
    return {"role": "user", "content": [*parts, text] if first else [text, *parts]}


def assistant(text: str) -> Message:
    """An assistant turn."""
    return {"role": "assistant", "content": text}


def one_picture(kind: str, scene: Scene, rng: random.Random, studio: Studio) -> Sample | None:
    """A question of one kind on one picture, the picture after the text now and then."""
    turn = ASK[kind](scene, rng)
    question = turn and studio.phrase(turn[0], rng)
    if turn is None or question is None:
        return None
    image = studio.photograph(scene, rng)
    return Sample(kind, [user(question, image, first=rng.random() < 0.88)], [image[0]], turn[1])


def follow(scene: Scene, rng: random.Random, studio: Studio) -> Sample | None:
    """The second of two turns; the first has its right answer."""
    turns = conversations.follow_up(scene, rng)
    if turns is None:
        return None
    (question, said), (last, answer) = turns
    last_put = studio.phrase(last, rng)
    if last_put is None:
        return None
    image = studio.photograph(scene, rng)
    return Sample("follow-up", [user(question, image), assistant(said), user(last_put)], [image[0]], answer)


def two(first: Scene, second: Scene, rng: random.Random, studio: Studio) -> Sample | None:
    """A question on two pictures, sent together or one after the other."""
    conversations.second_scene(first, rng, second)
    turn: Turn | None = conversations.two_pictures(first, second, rng)
    images = studio.photograph(first, rng), studio.photograph(second, rng)
    together = rng.random() < 0.5
    before = None if together else ASK["background"](first, rng)
    if not together and rng.random() < 0.3:  # about the newest picture
        turn = ASK[rng.choice(("colour", "count", "shape", "background"))](second, rng)
    question = turn and studio.phrase(turn[0], rng)
    if turn is None or question is None or (before is None and not together):
        return None
    if before is None:
        messages = [user(question, *images)]
    else:
        messages = [user(before[0], images[0]), assistant(before[1]), user(question, images[1])]
    return Sample("two", messages, [image[0] for image in images], turn[1])


def draw_one(kind: str, seed: int, studio: Studio = CLASSIC) -> Sample | None:
    """The sample of a seed, or None when its scene does not allow the kind."""
    rng = random.Random(seed)
    if kind == "text":
        question, answer = conversations.text_turn(rng, make_scene(seed * 2))
        put = studio.phrase(question, rng)
        return Sample(kind, [user(put)], [], answer) if put else None
    if kind == "two":
        return two(studio.scene(seed * 2, None), studio.scene(seed * 2 + 1, None), rng, studio)
    scene = studio.scene(seed * 2, "text" if kind in ("number", "word") else None)
    return follow(scene, rng, studio) if kind == "follow-up" else one_picture(kind, scene, rng, studio)


def samples(
    n: int, seed: int, kinds: Sequence[str] | None = None, studio: Studio = CLASSIC, first: int = FIRST_SEED
) -> Iterator[Sample]:
    """n held-out samples; `kinds` (all fourteen by default) take turns; `first` keeps sets of one seed apart."""
    wanted: Iterable[str] = kinds or KINDS
    order = list(wanted)
    if unknown := set(order) - set(KINDS):
        raise ValueError(f"unknown kinds {sorted(unknown)}; known: {', '.join(KINDS)}")
    for index in range(n):
        for attempt in range(1000):
            sample = draw_one(order[index % len(order)], first + (seed * 1_000_000 + index) * 1000 + attempt, studio)
            if sample:
                yield sample
                break
