"""The examination's sets: what is asked, how many questions, when an answer is right, and what must be reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from training import sample
from training.exam import brush, endings, errands, formats, heldout, honesty, phrasings
from training.sample import FIRST_SEED, Sample


@dataclass(frozen=True)
class Answer:
    """What was said, and whether it ended by itself, before the token limit."""

    text: str
    ended: bool


Judge = Callable[[Sample, Answer], bool]


@dataclass(frozen=True)
class ExamSet:
    """One set.  `make(count, seed)` draws its questions; `overall` and `each` are the shares to be reached in all and
    for every kind; `about` is its line in the list of sets.  `through_all`: it is asked through every protocol of a
    server, streamed and not, and its samples are `errands.Errand`s."""

    about: str
    count: int
    make: Callable[[int, int], Iterator[Sample]]
    right: Judge
    overall: float
    each: float = 0.0
    through_all: bool = False


def exact(asked: Sample, answer: Answer) -> bool:
    """The expected text, nothing more, and an end."""
    return answer.ended and answer.text.strip() == asked.answer


def same_value(asked: Sample, answer: Answer) -> bool:
    """JSON of the expected value, and an end."""
    try:
        return answer.ended and errands.said(json.loads(answer.text)) == asked.answer
    except ValueError:
        return False


def honest(asked: Sample, answer: Answer) -> bool:
    """An honest sentence (`training.exam.honesty`) and an end."""
    return answer.ended and honesty.honest(asked, answer.text)


def ends(asked: Sample, answer: Answer) -> bool:
    """Any answer that ended."""
    return answer.ended


def first_of(number: int, seed: int) -> int:
    """The first seed of a set's pictures; sets, and seeds of one set, never share a picture."""
    return FIRST_SEED * (number + 2) + seed * 10**10


def from_studio(number: int, studio: sample.Studio) -> Callable[[int, int], Iterator[Sample]]:
    """All kinds of question in turn on a studio's pictures."""
    return lambda count, seed: sample.samples(count, 0, None, studio, first_of(number, seed))


def numbered(number: int, make: Callable[[int, int], Iterator[Sample]], count: int, seed: int) -> Iterator[Sample]:
    """Questions of a set that takes its first seed."""
    return make(count, first_of(number, seed))


SETS: dict[str, ExamSet] = {
    "classic": ExamSet("drawn as in training, other seeds", 2000, sample.samples, exact, 0.95, 0.9),
    "heldout": ExamSet(
        "other seeds, layouts, typeface and papers", 2000, from_studio(1, heldout.STUDIO), exact, 0.95, 0.9
    ),
    "brush": ExamSet("another drawing routine, photographs behind", 2000, from_studio(2, brush.STUDIO), exact, 0.85),
    "phrasings": ExamSet("fifty phrasings never trained", 1000, partial(numbered, 3, phrasings.samples), exact, 0.85),
    "honesty": ExamSet("questions that have no answer", 200, partial(numbered, 4, honesty.samples), honest, 0.9),
    "formats": ExamSet("file formats, sizes, aspect ratios", 3200, partial(numbered, 5, formats.variants), exact, 0.0),
    "paint": ExamSet(
        '"Call paint with the colour of the circle."', 200, partial(numbered, 9, errands.paint), exact, 0.9, 0.0, True
    ),
    "tools": ExamSet("calls of all kinds", 200, partial(numbered, 7, errands.calls), exact, 0.9, 0.0, True),
    "json": ExamSet("JSON for a schema", 200, partial(numbered, 8, errands.objects), same_value, 0.9, 0.0, True),
    "endings": ExamSet("every answer ends by itself", 5000, partial(numbered, 6, endings.samples), ends, 1.0),
}
