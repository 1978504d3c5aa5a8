"""Fifty phrasings that training never uses, with the kind of question that each one asks."""

from __future__ import annotations

import random
from collections.abc import Iterator

from training.sample import CLASSIC, Sample, Studio, draw_one
from training.words.intents import say, understand

HELD_OUT: tuple[tuple[str, str, str], ...] = (  # kind, intent, template
    ("colour", "colour", "Can you tell what {w} the {name} is?"),
    ("colour", "colour", "What {w} did they paint the {name}?"),
    ("colour", "colour", "Give me the {w} of the {name}."),
    ("colour", "colours", "Can you tell me what {w} the {names} are?"),
    ("colour", "writing colour", "Which {w} has the {noun}?"),
    ("shape", "shape", "The {tint} thing, what is it?"),
    ("shape", "shape", "Can you tell me what the {tint} object is?"),
    ("shape", "shape", "Which shape do you see in {tint}?"),
    ("shape", "shape", "Something here is {tint}: which shape?"),
    ("size", "size", "Can you tell me how big {thing} is?"),
    ("size", "size", "Would you say {thing} is small or large?"),
    ("size", "size", "Give me the size of {thing}."),
    ("count", "count", "Can you count the {what}?"),
    ("count", "count", "How many {what} did you find?"),
    ("count", "count", "Tell me the number of {what}."),
    ("count", "count", "How many of the objects are {what}?"),
    ("relation", "sides", "Tell me if {thing} is left or right of {other}."),
    ("relation", "heights", "Tell me if {thing} is above or below {other}."),
    ("relation", "side", "Can you see {thing} to the {side} of {other}?"),
    ("relation", "side", "Would you say {thing} is {side} of {other}?"),
    ("relation", "height", "Would you say {thing} is {height} {other}?"),
    ("relation", "height", "Can {thing} be seen {height} {other}?"),
    ("where", "where", "Can you tell me where {thing} is?"),
    ("where", "where", "Where should I look for {thing}?"),
    ("where", "where", "What part of the image is {thing} in?"),
    ("where", "where", "Give me the place of {thing}."),
    ("number", "number", "Can you read the number?"),
    ("number", "number", "What is the number that you see?"),
    ("number", "number", "Give me the number in the picture."),
    ("word", "word", "Can you read the word?"),
    ("word", "word", "What is the word that you see?"),
    ("word", "word", "Give me the word in the picture."),
    ("background", "background", "Can you tell me the {w} of the background?"),
    ("background", "background", "Which {w} do you see behind the shapes?"),
    ("background", "background", "Give the background's {w}."),
    ("existence", "existence", "Can you find {one}?"),
    ("existence", "existence", "Is {one} somewhere in this image?"),
    ("existence", "any colour", "Can you find anything {tint}?"),
    ("existence", "any writing", "Can you find {noun_one} in the image?"),
    ("describe", "describe", "Can you describe the picture?"),
    ("describe", "describe", "Tell me about this picture."),
    ("describe", "describe", "What do we have here?"),
    ("follow-up", "its size", "Would you say it is small or large?"),
    ("follow-up", "its place", "Can you tell me where it is?"),
    ("follow-up", "its colour", "And which {w} has it?"),
    ("follow-up", "and how many", "Can you count the {names} too?"),
    ("two", "which has more", "Can you tell which picture has {amount} shapes?"),
    ("two", "same background", "Would you say that the backgrounds are the same?"),
    ("two", "in both", "Can you find {one} in both pictures?"),
    ("two", "which has", "Can you tell which picture has {one}?"),
)


def studio_of(intent: str, template: str) -> Studio:
    """The classic pictures with one phrasing and no other question."""

    def phrase(question: str, rng: random.Random) -> str | None:
        understood = understand(question)
        return say(template, understood[1]) if understood and understood[0] == intent else None

    return Studio(CLASSIC.scene, CLASSIC.photograph, phrase)


def samples(count: int, first: int) -> Iterator[Sample]:
    """`count` questions, the phrasings taking turns, so that only the words are new."""
    for index in range(count):
        kind, intent, template = HELD_OUT[index % len(HELD_OUT)]
        studio = studio_of(intent, template)
        seeds = range(first + index * 10_000, first + (index + 1) * 10_000)
        yield next(sample for seed in seeds if (sample := draw_one(kind, seed, studio)))
