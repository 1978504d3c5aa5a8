"""What a question asks, whatever its words: the program's own forms taken apart into an intent and its parts.

`training.words.questions` and `training.words.conversations` write a question in a few forms; `understand` reads
those back, so that `training.words.phrasebook` (training) and `training.exam.phrasings` (examination) can say the
same otherwise.
"""

from __future__ import annotations

import re
from functools import lru_cache

from training.pictures.world import COLOUR_NAMES, SHAPES
from training.words.phrases import plural

TINT = f"(?:{'|'.join(COLOUR_NAMES)})"
SHAPE = f"(?:{'|'.join(SHAPES)})"
SHAPES_TOGETHER = f"(?:{'|'.join(plural(name) for name in SHAPES)})"
THING = rf"the (?:{TINT} )?(?:{SHAPE}|shape|object)"
PARTS = {
    "w": "colou?r",
    "noun": "number|word",
    "name": SHAPE,
    "names": SHAPES_TOGETHER,
    "tint": TINT,
    "thing": THING,
    "other": THING,
    "what": rf"(?:{TINT} )?(?:{SHAPES_TOGETHER}|shapes)",
    "one": rf"an? (?:{TINT} )?{SHAPE}",
    "noun_one": "a (?:number|word)",
    "side": "left|right",
    "height": "above|below",
    "amount": "more|fewer",
    "place": " in the (?:first|second) (?:picture|image)",
}
FORMS: dict[str, tuple[str, ...]] = {
    "writing colour": ("What {w} is the {noun}{place}?", "Which {w} is the {noun} written in{place}?"),
    "colours": ("What {w} are the {names}{place}?", "Which {w} do the {names} have{place}?"),
    "background": (
        "What {w} is the background{place}?",
        "Which {w} is the background?",
        "What is the background {w}?",
        "What {w} is behind everything?",
    ),
    "colour": (
        "What {w} is the {name}{place}?",
        "Which {w} is the {name}{place}?",
        "What is the {w} of the {name}{place}?",
        "Tell me the {w} of the {name}.",
    ),
    "shape": (
        "What shape is the {tint} object{place}?",
        "Which shape is {tint}{place}?",
        "What shape is the {tint} one{place}?",
        "What is the shape of the {tint} object{place}?",
    ),
    "size": ("Is {thing} small or large?", "What size is {thing}?", "How big is {thing}?"),
    "count": (
        "How many {what} are there?",
        "How many {what} do you see?",
        "How many {what} are in the picture?",
        "How many {what} are{place}?",
        "Count the {what}.",
    ),
    "sides": ("Is {thing} left or right of {other}?",),
    "heights": ("Is {thing} above or below {other}?",),
    "side": ("Is {thing} {side} of {other}?", "Is {thing} to the {side} of {other}?"),
    "height": ("Is {thing} {height} {other}?",),
    "where": ("Where is {thing}?", "In which part of the picture is {thing}?", "Where do you see {thing}?"),
    "number": (
        "What number is shown{place}?",
        "What number do you see?",
        "Which number is written{place}?",
        "Read the number.",
        "What is the number{place}?",
    ),
    "word": (
        "What word is shown{place}?",
        "What word do you see?",
        "Which word is written{place}?",
        "Read the word.",
        "What does it say{place}?",
    ),
    "text": ("What is written in the picture?", "Read the text."),
    "any writing": ("Is there {noun_one} in the picture?", "Do you see {noun_one}?"),
    "any colour": ("Is there anything {tint}?", "Do you see anything {tint}?"),
    "existence": ("Is there {one}?", "Do you see {one}?", "Is there {one} in the picture?"),
    "describe": (
        "Describe the picture.",
        "What is in the picture?",
        "What do you see?",
        "Describe this image.",
        "What does the picture show?",
    ),
    "its size": ("Is it small or large?", "What size is it?", "How big is it?"),
    "its place": ("Where is it?", "Where do you see it?"),
    "its colour": ("What {w} is it?", "Which {w} is it written in?"),
    "and this": ("And the {name}?", "What about the {name}?"),
    "and that many": ("And how many {tint} ones?", "And {tint} ones?"),
    "and how many": ("And how many {names}?", "And {names}?"),
    "which has more": ("Which picture has {amount} shapes?",),
    "same background": ("Do both pictures have the same background?",),
    "in both": ("Is there {one} in both pictures?",),
    "which has": ("Which picture has {one}?", "Which picture shows {one}?"),
}
Parts = dict[str, str]


def pattern(form: str) -> re.Pattern[str]:
    """A form as a regular expression with its parts as groups; a place may be missing."""
    text = re.escape(form).replace(r"\{", "{").replace(r"\}", "}")
    for name, choices in PARTS.items():
        text = text.replace("{" + name + "}", f"(?P<{name}>{choices}){'?' if name == 'place' else ''}")
    return re.compile(text)


PATTERNS = [(intent, pattern(form)) for intent, forms in FORMS.items() for form in forms]


@lru_cache(maxsize=100_000)
def understand(question: str) -> tuple[str, Parts] | None:
    """The intent and parts of one of the program's own questions; None for small talk."""
    for intent, form in PATTERNS:
        if found := form.fullmatch(question):
            return intent, {name: part or "" for name, part in found.groupdict().items()}
    return None


def say(template: str, parts: Parts) -> str | None:
    """A template with its parts put in, first letter large; None where the question has a place and it has none."""
    if parts.get("place") and "{place}" not in template:
        return None
    text = template.format_map({"w": "colour", "place": "", **parts})
    return text[0].upper() + text[1:]
