"""Training rows: one picture prefix, many questions on it.

A row is `<s> <|user|> picture ...` followed by segments, each a conversation of its own that attends to the prefix and
to itself only and whose positions go on where the prefix ends (the tree mask).  A single segment is an ordinary causal
row.  Row makers: one picture, two pictures in one turn or in two turns, no picture.  A turn's pictures come before its
text, as the chat template puts them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from training import tokens
from training.pictures import looks
from training.pictures.scenes import Scene
from training.pictures.world import PATCHES
from training.tokens import ASSISTANT, BOS, EOS, FIRST, IMAGE, SECOND, SYSTEM, USER, Coder
from training.words import conversations, honest
from training.words.phrasebook import put
from training.words.questions import Turn

LENGTH = 256
KINDS = {
    "colour": 1.2,
    "shape": 2.0,
    "size": 2.0,
    "count": 8.0,
    "relation": 8.0,
    "where": 6.0,  # half as often the sides were lost, see training/README.md
    "number": 7.0,
    "word": 4.0,
    "background": 1.4,
    "existence": 6.0,
    "describe": 8.0,
}
PICTURE = [IMAGE] * PATCHES
UNMARKED = 0.05  # share of single pictures without their mark, as when a client writes <image> itself


@dataclass
class Row:
    """One row under construction: parallel lists of length <= LENGTH, and the scenes its pictures show."""

    scenes: list[Scene] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)  # 0 is the prefix
    targets: list[int] = field(default_factory=list)  # next token where it is learned, else -1
    answers: list[tuple[str, int, int]] = field(default_factory=list)  # kind, first and last target index

    def add(self, ids: list[int] | tuple[int, ...], segment: int, start: int, learn: bool = False) -> int:
        """Appends ids at positions from `start`; `learn`: each is the target of the token before it."""
        for offset, token in enumerate(ids):
            if learn:
                self.targets[-1] = token
            self.tokens.append(token)
            self.positions.append(start + offset)
            self.segments.append(segment)
            self.targets.append(-1)
        return start + len(ids)

    def answer(self, coder: Coder, kind: str, text: str, segment: int, start: int) -> int:
        """Appends `<|assistant|>` and a learned answer with its `</s>`."""
        start = self.add([ASSISTANT], segment, start)
        first = len(self.tokens) - 1
        end = self.add([*coder.ids(text), EOS], segment, start, learn=True)
        self.answers.append((kind, first, len(self.tokens) - 2))
        return end


def one_segment(scenes: list[Scene], rng: random.Random, newest: int) -> list[tuple[str, Turn]]:
    """The turns of one segment with their kinds: mostly one, sometimes a chain; `newest`: the picture last seen."""
    turns: list[tuple[str, Turn]] = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        if rng.random() < 0.04:
            phrasings, answer = rng.choice(conversations.SMALL_TALK)
            turns.append(("text", (rng.choice(phrasings), answer)))
        elif rng.random() < 0.07:
            turns.append(
                ("honest", honest.about_picture(scenes[newest], rng) if len(scenes) == 1 else honest.outside(rng))
            )
        elif len(scenes) == 2 and rng.random() < 0.85:
            which = (
                conversations.of_both(scenes[0], scenes[1], rng, conversations.WHICH) if rng.random() < 0.4 else None
            )
            turns.append(("two", which or conversations.two_pictures(scenes[0], scenes[1], rng)))
        elif len(scenes) == 2 and newest == 0:
            continue
        elif rng.random() < 0.25 and (pair := conversations.follow_up(scenes[newest], rng)):
            turns += [("first", pair[0]), ("follow-up", pair[1])]
        else:
            turns.append(conversations.single(scenes[newest], rng, KINDS))
    return turns


def blind(rng: random.Random) -> tuple[str, Turn]:
    """A turn without any picture: small talk, a question on a picture that never came, or something outside."""
    scene = looks.scene(rng.randrange(10**6))
    if rng.random() < 0.3:
        return "honest", honest.outside(rng)
    return "text", honest.without_picture(scene, rng) if rng.random() < 0.5 else conversations.text_turn(rng, scene)


def open_row(coder: Coder, rng: random.Random) -> tuple[Row, int]:
    """`<s>` and sometimes a system turn."""
    row = Row()
    head = [BOS, SYSTEM, *coder.ids(rng.choice(conversations.SYSTEMS))] if rng.random() < 0.12 else [BOS]
    return row, row.add(head, 0, 0)


def prefix_of_two(row: Row, start: int, scenes: list[Scene], coder: Coder, rng: random.Random) -> tuple[int, int]:
    """Two pictures after the opening of a user turn: together, or the second one in a later turn."""
    start = row.add([FIRST, *PICTURE], 0, start)
    if rng.random() < 0.5:
        return row.add([SECOND, *PICTURE], 0, start), 0
    kind, (question, answer) = conversations.single(scenes[0], rng, KINDS)
    start = row.add(coder.ids(put(question, rng)), 0, start)
    start = row.answer(coder, kind, answer, 0, start)
    return row.add([USER, SECOND, *PICTURE], 0, start), 1


def prefix(row: Row, start: int, scenes: list[Scene], coder: Coder, rng: random.Random) -> tuple[int, int]:
    """The pictures and whatever comes between them; returns the next position and the newest picture's index (of two
    in one turn neither is newest: 0)."""
    row.scenes = scenes
    start = row.add([USER], 0, start)
    if len(scenes) == 2:
        return prefix_of_two(row, start, scenes, coder, rng)
    return row.add([FIRST, *PICTURE] if rng.random() > UNMARKED else PICTURE, 0, start), 0


def fill(row: Row, start: int, newest: int, coder: Coder, rng: random.Random, length: int) -> None:
    """Adds segments until the row is full; `newest`: the picture a question without "first" or "second" means."""
    segment = 0
    while True:
        segment += 1
        if row.scenes:
            turns = one_segment(row.scenes, rng, newest)
        else:
            turns = [blind(rng) for _ in range(rng.choice((1, 1, 2)))]
        coded = [(kind, coder.ids(put(question, rng)), answer) for kind, (question, answer) in turns]
        need = sum(len(ids) + 3 + len(coder.ids(answer)) for _, ids, answer in coded)
        if len(row.tokens) + need > length:
            return
        place = start
        if rng.random() < 0.12:  # as if other turns had come between
            place += int(2 ** rng.uniform(3, 10.4))
        for number, (kind, ids, answer) in enumerate(coded):
            if number or not row.scenes:
                place = row.add([USER], segment, place)
            place = row.add(ids, segment, place)
            place = row.answer(coder, kind, answer, segment, place)


def make_row(seed: int, coder: Coder, loose: float = 0.0, length: int = LENGTH) -> Row:
    """The row of a seed: 68 % one picture, 28 % two, 4 % none; in training (`loose`) a third of the first ones have a
    number."""
    rng = random.Random(seed)
    roll = rng.random()
    count = 1 if roll < 0.68 else 2 if roll < 0.96 else 0
    scenes = [looks.scene(seed * 2 + index, loose) for index in range(count)]
    if loose and seed % 3 == 0 and count:
        scenes[0] = looks.writing(seed * 2, loose, str.isdigit)
    if count == 2:
        scenes[1] = conversations.second_scene(scenes[0], rng, scenes[1])
    row, start = open_row(coder, rng)
    newest = 0
    if count:
        start, newest = prefix(row, start, scenes, coder, rng)
    fill(row, start, newest, coder, rng, length)
    return row


def tree_mask(segments: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n, L) segment numbers (-1 padding) -> (n, L, L): causal, and only within the prefix or the own segment."""
    mine, theirs = segments[:, :, None], segments[:, None, :]
    causal = np.tril(np.ones((segments.shape[1],) * 2, bool))
    return ((theirs == 0) | (theirs == mine)) & causal[None]


@dataclass
class Batch:
    """Stacked rows: (n, L) tokens, positions and targets, (n, 1, L, L) mask, and where each picture token goes."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    mask: NDArray[np.bool_]
    scenes: list[Scene]
    slots: NDArray[np.int64]  # flat indices into n * L, one run of PATCHES a scene
    answers: list[tuple[str, int, int]]  # kind, first and last flat target index


def stack(rows: list[Row], length: int = LENGTH) -> Batch:
    """Pads rows to one length."""
    shape = (len(rows), length)
    token, place = np.full(shape, tokens.PAD), np.zeros(shape, np.int64)
    target, segment = np.full(shape, -1), np.full(shape, -1)
    answers = []
    for index, row in enumerate(rows):
        size = len(row.tokens)
        token[index, :size], place[index, :size] = row.tokens, row.positions
        target[index, :size], segment[index, :size] = row.targets, row.segments
        answers += [(kind, first + index * length, last + index * length) for kind, first, last in row.answers]
    slots = np.flatnonzero(token.reshape(-1) == IMAGE)
    return Batch(
        token, place, target, tree_mask(segment)[:, None], [s for row in rows for s in row.scenes], slots, answers
    )
