"""Held-out pictures and conversations with the exact expected answer, in OpenAI's chat format.

`samples` needs only pillow and numpy, so that tests and benchmarks can draw a picture and know what a right answer is.
Seeds are far from those of training.  Kinds come in turn, so that any number of samples is an even mix.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from training import conversations
from training.questions import ASK, Turn
from training.scenes import Scene, draw_scene, encode, make_scene

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


def photograph(scene: Scene, rng: random.Random) -> tuple[bytes, str]:
    """The scene as a file, sometimes larger, as PNG or JPEG: (bytes, media type)."""
    scale = rng.choice((1, 1, 1, 1, 2, 3))
    scene.width, scene.height, scene.stroke = scene.width * scale, scene.height * scale, scene.stroke * scale
    kind = rng.choice(("PNG", "JPEG"))
    return encode(draw_scene(scene), kind, rng.randint(70, 95)), f"image/{kind.lower()}"


def part(image: tuple[bytes, str]) -> dict[str, Any]:
    """A content part that holds a picture as a data: URL."""
    url = f"data:{image[1]};base64,{base64.b64encode(image[0]).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def user(question: str, *images: tuple[bytes, str], first: bool = True) -> Message:
    """A user turn; pictures before the text, or after it."""
    if not images:
        return {"role": "user", "content": question}
    parts, text = [part(image) for image in images], {"type": "text", "text": question}
    return {"role": "user", "content": [*parts, text] if first else [text, *parts]}


def assistant(text: str) -> Message:
    """An assistant turn."""
    return {"role": "assistant", "content": text}


def one_picture(kind: str, scene: Scene, rng: random.Random) -> Sample | None:
    """A question of one kind on one picture, the picture after the text now and then."""
    turn = ASK[kind](scene, rng)
    if turn is None:
        return None
    image = photograph(scene, rng)
    return Sample(kind, [user(turn[0], image, first=rng.random() < 0.88)], [image[0]], turn[1])


def follow(scene: Scene, rng: random.Random) -> Sample | None:
    """The second of two turns; the first has its right answer."""
    turns = conversations.follow_up(scene, rng)
    if turns is None:
        return None
    (question, said), (last, answer) = turns
    image = photograph(scene, rng)
    return Sample("follow-up", [user(question, image), assistant(said), user(last)], [image[0]], answer)


def two(first: Scene, second: Scene, rng: random.Random) -> Sample | None:
    """A question on two pictures, sent together or one after the other."""
    conversations.second_scene(first, rng, second)
    turn: Turn | None = conversations.two_pictures(first, second, rng)
    images = photograph(first, rng), photograph(second, rng)
    if rng.random() < 0.5 and turn:
        return Sample("two", [user(turn[0], *images)], [image[0] for image in images], turn[1])
    before = ASK["background"](first, rng)
    if rng.random() < 0.3:  # about the newest picture
        turn = ASK[rng.choice(("colour", "count", "shape", "background"))](second, rng)
    if before is None or turn is None:
        return None
    messages = [user(before[0], images[0]), assistant(before[1]), user(turn[0], images[1])]
    return Sample("two", messages, [image[0] for image in images], turn[1])


def draw_one(kind: str, seed: int) -> Sample | None:
    """The sample of a seed, or None when its scene does not allow the kind."""
    rng = random.Random(seed)
    if kind == "text":
        question, answer = conversations.text_turn(rng, make_scene(seed * 2))
        return Sample(kind, [user(question)], [], answer)
    if kind == "two":
        return two(make_scene(seed * 2), make_scene(seed * 2 + 1), rng)
    scene = make_scene(seed * 2, "text" if kind in ("number", "word") else None)
    return follow(scene, rng) if kind == "follow-up" else one_picture(kind, scene, rng)


def samples(n: int, seed: int, kinds: Sequence[str] | None = None) -> Iterator[Sample]:
    """n held-out samples; `kinds` (all fourteen by default) take turns."""
    wanted: Iterable[str] = kinds or KINDS
    order = list(wanted)
    if unknown := set(order) - set(KINDS):
        raise ValueError(f"unknown kinds {sorted(unknown)}; known: {', '.join(KINDS)}")
    for index in range(n):
        for attempt in range(1000):
            sample = draw_one(order[index % len(order)], FIRST_SEED + (seed * 1_000_000 + index) * 1000 + attempt)
            if sample:
                yield sample
                break
