"""Training rows of stage D: pictures with calls of functions and JSON answers, between rows of the earlier stages.

Laid out as `training.rows`: one prefix of pictures, many segments that attend to it and to themselves.  A segment's
functions stand where the chat template writes them: after the pictures, before the first text.
"""

from __future__ import annotations

import random

from training.pictures import looks
from training.pictures.scenes import Scene
from training.rows import FIRST, KINDS, LENGTH, PICTURE, SECOND, Row, make_row, open_row
from training.tokens import ASSISTANT, EOS, FUNCTION, TOOL, USER, Coder
from training.words import calling, conversations, honest, objects
from training.words.phrasebook import put
from training.words.questions import Turn
from training.words.written import Reply, Segment, plain

REPLAYED = 0.5
"""Share of the rows that are stage C's, so that what they teach is not lost."""
PAIRS, BLIND = 0.12, 0.03
"""Share of the other rows with two pictures, and without any."""


OUTSIDE = 0.2
"""Share of segments with a question that has no answer, and no functions: unknown words alone ask for no call."""


def simple_turn(scene: Scene, rng: random.Random) -> Turn:
    """Any question of the earlier stages on one picture."""
    return conversations.single(scene, rng, KINDS)[1]


def value_turn(scene: Scene, rng: random.Random) -> tuple[Turn, object]:
    """A question whose answer is a value, and the value."""
    kinds = {"colour": 3, "shape": 2, "count": 3, "number": 3, "word": 2, "background": 1, "size": 1, "where": 1}
    turn = conversations.single(scene, rng, kinds)[1]
    return turn, int(turn[1]) if turn[1].isdigit() and turn[1] == str(int(turn[1])) else turn[1]


def on_picture(scene: Scene, rng: random.Random) -> Segment | None:
    """A segment on one picture."""
    roll = rng.random()
    if rng.random() < OUTSIDE:
        question, answer = honest.outside(rng) if rng.random() < 0.7 else honest.about_picture(scene, rng)
        return Segment().said(put(question, rng), plain("honest", answer))
    if roll < 0.36:
        return calling.asked_call(scene, rng)
    if roll < 0.39:
        return calling.given_call(rng)
    if roll < 0.43:
        return calling.two_calls(scene, rng)
    if roll < 0.49:
        return calling.after_result(scene, rng)
    if roll < 0.55:
        return calling.forced_call(*value_turn(scene, rng), rng)
    if roll < 0.63:
        return calling.no_call(simple_turn(scene, rng), rng)
    if roll < 0.65:
        return calling.unknown_function(scene, rng)
    if roll < 0.67:
        return calling.missing_thing(scene, rng)
    if roll < 0.77:
        return objects.forced_answer(simple_turn(scene, rng), rng)
    if roll < 0.82:
        return objects.asked_answer(simple_turn(scene, rng), rng)
    if roll < 0.89:
        return objects.of_facts(scene, rng)
    return objects.of_one(scene, rng) if roll < 0.96 else objects.of_picture(scene, rng)


def on_pair(scenes: list[Scene], rng: random.Random) -> Segment:
    """A segment on two pictures of one turn."""
    turn = conversations.two_pictures(scenes[0], scenes[1], rng)
    make = rng.choice((objects.forced_answer, objects.asked_answer, calling.no_call))
    return make(turn, rng)


def coded(segment: Segment, coder: Coder, pictures: bool) -> list[tuple[list[int], bool, str]]:
    """The segment's tokens in pieces: ids, whether they are learned, and the kind of the answer that ends there.
    `pictures`: the prefix has opened the user's turn."""
    out: list[tuple[list[int], bool, str]] = []
    opened = pictures
    if segment.functions:
        head = [] if opened else [USER]
        for function in segment.functions:
            head += [FUNCTION, *coder.exact(function.line)]
        out.append((head, False, ""))
        opened = False
    for role, said in segment.turns:
        if isinstance(said, Reply):
            out.append(([ASSISTANT], False, ""))
            out += [(list(coder.exact(text)), learned, "") for text, learned in said.pieces]
            out.append(([EOS], True, said.kind))
            continue
        mark = [] if opened else [TOOL if role == "tool" else USER]
        out.append(([*mark, *coder.ids(said)], False, ""))
        opened = False
    return out


def fill(row: Row, start: int, coder: Coder, rng: random.Random, length: int) -> None:
    """Adds segments until the row is full."""
    number = 0
    while True:
        segment = (
            on_pair(row.scenes, rng)
            if len(row.scenes) == 2
            else on_picture(row.scenes[0], rng)
            if row.scenes
            else calling.without_picture(rng)
        )
        if segment is None:
            continue
        pieces = coded(segment, coder, bool(row.scenes))
        if len(row.tokens) + sum(len(ids) for ids, _, _ in pieces) > length:
            return
        number += 1
        place, first = start, 0
        if rng.random() < 0.08:  # as if other turns had come between
            place += int(2 ** rng.uniform(3, 10))
        for ids, learned, kind in pieces:
            if ids == [ASSISTANT]:
                first = len(row.tokens)
            place = row.add(ids, number, place, learn=learned)
            if kind:
                row.answers.append((kind, first, len(row.tokens) - 2))


def make_errand(seed: int, coder: Coder, length: int = LENGTH) -> Row:
    """The row of a seed with calls and JSON."""
    rng = random.Random(seed)
    roll = rng.random()
    count = 0 if roll < BLIND else 2 if roll < BLIND + PAIRS else 1
    scenes = [looks.scene(seed * 2 + index, 0.3) for index in range(count)]
    if count == 2:
        scenes[1] = conversations.second_scene(scenes[0], rng, scenes[1])
    row, start = open_row(coder, rng)
    row.scenes = scenes
    if count:
        head = [USER, FIRST, *PICTURE] + [SECOND, *PICTURE] * (count == 2)
        start = row.add(head, 0, start)
    fill(row, start, coder, rng, length)
    return row


def mixed(seed: int, coder: Coder, length: int = LENGTH) -> Row:
    """The row of a seed: one of stage C's, or one with calls and JSON."""
    if random.Random(seed ^ 0xD).random() < REPLAYED:
        return make_row(seed, coder, loose=0.5, length=length)
    return make_errand(seed, coder, length)
