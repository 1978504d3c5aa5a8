"""How training puts questions: other words for every intent, and what people write before and after.

The examination's phrasings (`training.exam.phrasings`) are kept apart: no template may stand in both.
"""

from __future__ import annotations

import random

from training.words.intents import say, understand

# fmt: off
BOOK: dict[str, tuple[str, ...]] = {
    "colour": (
        "What {w} does the {name} have{place}?", "Which {w} does the {name} have{place}?",
        "Name the {w} of the {name}{place}.", "Say the {w} of the {name}{place}.", "The {name}{place} is what {w}?",
        "What {w} is used for the {name}{place}?", "In which {w} is the {name} drawn{place}?",
        "What is the {name}'s {w}{place}?", "Do you know the {w} of the {name}{place}?",
        "I would like to know the {w} of the {name}{place}.", "{w} of the {name}{place}?",
        "There is a {name}{place}. What {w} is it?", "Look at the {name}{place}. Which {w} is it?",
    ),
    "colours": (
        "What {w} do the {names} have{place}?", "Name the {w} of the {names}{place}.",
        "The {names}{place} are what {w}?", "Which {w} are the {names}{place}?",
        "What is the {w} of the {names}{place}?", "In which {w} are the {names} drawn{place}?",
        "Look at the {names}{place}. What {w} are they?",
    ),
    "writing colour": (
        "What {w} does the {noun} have{place}?", "Name the {w} of the {noun}{place}.",
        "What is the {w} of the {noun}{place}?", "In what {w} is the {noun} drawn{place}?",
        "The {noun}{place} is what {w}?", "Say the {w} of the {noun}{place}.",
        "What {w} is used for the {noun}{place}?",
    ),
    "background": (
        "Name the {w} of the background{place}.", "What is the {w} of the background{place}?",
        "What {w} does the background have{place}?", "The background{place} is what {w}?",
        "On what {w} is everything drawn{place}?", "What {w} is the paper{place}?",
        "Say the {w} of the background{place}.", "Which {w} is behind the shapes{place}?",
        "What {w} is the picture's background?",
    ),
    "shape": (
        "Name the {tint} shape{place}.", "What is the {tint} object{place}?", "What is the {tint} thing{place}?",
        "Which shape is the {tint} one{place}?", "What shape does the {tint} object have{place}?",
        "The {tint} object{place} is what shape?", "What is {tint}{place}?", "Which object is {tint}{place}?",
        "Say what shape is {tint}{place}.", "What kind of shape is the {tint} object{place}?",
        "There is something {tint}{place}. What shape is it?",
    ),
    "size": (
        "Is {thing} large or small?", "Tell me the size of {thing}.", "What is the size of {thing}?",
        "Name the size of {thing}.", "Which size does {thing} have?", "How large is {thing}?",
        "How small is {thing}?", "Small or large: {thing}?", "Look at {thing}. Is it large or small?",
    ),
    "count": (
        "What is the number of {what}{place}?", "How many {what} can you see{place}?",
        "How many {what} can you count{place}?", "Give the number of {what}{place}.",
        "Tell me how many {what} there are{place}.", "Say how many {what} you see{place}.",
        "How many {what} does the picture have?", "How many {what}{place}?", "Count all {what}{place}.",
        "Please count the {what}{place}.", "I see some {what}{place}. How many are they?", "Number of {what}{place}?",
    ),
    "sides": (
        "Where is {thing}, left or right of {other}?", "Which side of {other} is {thing} on, left or right?",
        "Is {thing} to the left or to the right of {other}?", "Left or right: where is {thing} seen from {other}?",
        "Does {thing} lie left or right of {other}?",
    ),
    "heights": (
        "Where is {thing}, above or below {other}?", "Does {thing} lie above or below {other}?",
        "Above or below: where is {thing} seen from {other}?", "Which is it: is {thing} above or below {other}?",
    ),
    "side": (
        "Does {thing} lie {side} of {other}?", "Is it true that {thing} is {side} of {other}?",
        "Do you see {thing} {side} of {other}?", "Is {thing} on the {side} of {other}?",
        "{thing} is {side} of {other}, yes or no?", "Look at {other}. Is {thing} {side} of it?",
    ),
    "height": (
        "Does {thing} lie {height} {other}?", "Is it true that {thing} is {height} {other}?",
        "Do you see {thing} {height} {other}?", "{thing} is {height} {other}, yes or no?",
        "Look at {other}. Is {thing} {height} it?",
    ),
    "where": (
        "Tell me where {thing} is.", "In what part of the picture is {thing}?", "In which corner is {thing}?",
        "Where in the picture is {thing}?", "Say where you see {thing}.", "Where can I find {thing}?",
        "Which part of the picture shows {thing}?", "Where does {thing} lie?", "Look for {thing}. Where is it?",
    ),
    "number": (
        "Which number do you see{place}?", "Which number is shown{place}?", "What number is written{place}?",
        "Tell me the number{place}.", "Say the number{place}.", "Which number is in the picture?",
        "What number does the picture show?", "Read me the number{place}.", "Which digits do you see{place}?",
        "Read the digits{place}.", "There is a number{place}. Which one?",
    ),
    "word": (
        "Which word do you see{place}?", "Which word is shown{place}?", "What word is written{place}?",
        "Tell me the word{place}.", "Say the word{place}.", "Which word is in the picture?",
        "What word does the picture show?", "Read me the word{place}.", "Which letters do you see{place}?",
        "Read the letters{place}.", "There is a word{place}. Which one?",
    ),
    "text": (
        "What is the text?", "Read what is written.", "Tell me what is written.", "What text do you see?",
        "What does the text say?", "Which text is shown?", "Read it.",
    ),
    "any writing": (
        "Does the picture show {noun_one}?", "Is {noun_one} shown?", "Is {noun_one} written in the picture?",
        "Can you see {noun_one}?", "Does the picture have {noun_one}?", "{noun_one}, is it there?",
    ),
    "any colour": (
        "Is something {tint}?", "Is there something {tint} in the picture?", "Can you see anything {tint}?",
        "Is any object {tint}?", "Does the picture have something {tint}?", "Do you see something {tint}?",
    ),
    "existence": (
        "Can you see {one}?", "Does the picture show {one}?", "Does the picture have {one}?",
        "Is {one} in the picture?", "Is {one} there?", "Is {one} shown?", "Do you see {one} in the picture?",
        "Tell me if there is {one}.", "{one}, is it there?",
    ),
    "describe": (
        "Describe it.", "Describe what you see.", "Tell me what you see.", "Tell me what is in the picture.",
        "Say what you see.", "What does this image show?", "What is in this image?", "What is shown?",
        "What can you see?", "Name everything in the picture.", "What things are in the picture?",
        "Please describe the image.", "List what you see.",
        "Say something about the picture.", "What is this picture about?",
    ),
    "its size": (
        "Is it large or small?", "What is its size?", "How large is it?", "Tell me its size.", "And its size?",
        "Which size does it have?",
    ),
    "its place": (
        "In which part of the picture is it?", "Where in the picture is it?", "Tell me where it is.",
        "And where is it?", "Where does it lie?",
    ),
    "its colour": (
        "What is its {w}?", "Tell me its {w}.", "And its {w}?", "What {w} does it have?", "And what {w}?",
    ),
    "and this": (
        "And what about the {name}?", "And what is the {w} of the {name}?", "Now the {name}.",
        "How about the {name}?", "The same for the {name}?", "And which {w} is the {name}?",
    ),
    "and that many": (
        "How many {tint} ones?", "And the {tint} ones, how many?", "How many of them are {tint}?",
        "What about {tint} ones?", "Now count the {tint} ones.",
    ),
    "and how many": (
        "How many {names}?", "And the {names}, how many?", "What about {names}?", "Now count the {names}.",
        "And what is the number of {names}?",
    ),
    "which has more": (
        "Which image has {amount} shapes?", "In which picture are {amount} shapes?",
        "Where are {amount} shapes, in the first or the second picture?",
        "Which of the two pictures has {amount} shapes?", "Which picture shows {amount} objects?",
    ),
    "same background": (
        "Is the background the same in both pictures?", "Do the two pictures have the same background?",
        "Is the background of both pictures the same colour?", "Have both images the same background?",
        "Are the two backgrounds equal?",
    ),
    "in both": (
        "Do both pictures have {one}?", "Do both pictures show {one}?", "Is {one} in both images?",
        "Can you see {one} in both pictures?", "Do the two pictures both have {one}?",
    ),
    "which has": (
        "In which picture is {one}?", "Which image has {one}?", "Which of the two pictures has {one}?",
        "Where is {one}, in the first or the second picture?", "In which picture do you see {one}?",
    ),
}
# fmt: on
BEFORE = (
    "Please: ",
    "Look at the picture. ",
    "Hi! ",
    "Question: ",
    "Look. ",
    "Now tell me. ",
    "Hello. ",
    "A question: ",
)
AFTER = (" Please.", " Answer briefly.", " Thank you.", " Be short.", " One word is enough.")
ORDERS = frozenset("Count Describe Give List Look Name Read Say Tell".split())  # first words of what is an order
ASKED = (
    ("Could you", "?"), ("Could you please", "?"), ("Will you", "?"), ("I want you to", "."), ("Are you able to", "?"),
    ("Can anybody", "?"), ("Can someone", "?"), ("Would you kindly", "?"), ("May I ask you to", "?"),
)  # fmt: skip


FILLERS = """
a about after again all also and any are as at be been but by call check come could did do does down draw each even
ever find first for from get give go good had has have help here how if in into it just keep kind know less let like
little long look made make many may maybe me might mine more move much my name need new next nice not now of off
often old on once only or our out over own part quick read really right same see seem seen shall she should show since
so some soon still such sure take tell than that the them then these they thing think this those though to today too
try under until up us use very want was way we well went were what when which while who why will with without would
yet you your
""".split()
KEYS = set(
    """
left right above below top bottom small large big size sizes shape shapes object objects number numbers word words text
letters digits background paper behind colour color colours colors where corner part many count more fewer less both
first second same picture image pictures images yes no not anything something any it its and or describe list what which
how is are there all each
""".split()
)


IDLE = tuple(word for word in FILLERS if word not in KEYS)


def recast(question: str, rng: random.Random) -> str:
    """The question in other words, or as it was where it has none."""
    understood = understand(question)
    if understood is None:
        return question
    intent, parts = understood
    options = [text for template in BOOK.get(intent, ()) if (text := say(template, parts))]
    return rng.choice(options) if options else question


def babble(question: str, rng: random.Random) -> str:
    """One or two words that carry nothing are replaced or put in before the question, so that an unknown phrase is read
    by the words that matter; names of the world and `KEYS` stay."""
    words = question.split()
    for _ in range(rng.choice((1, 1, 2))):
        free = [k for k, word in enumerate(words) if word in IDLE]
        if free and rng.random() < 0.6:
            words[rng.choice(free)] = rng.choice(IDLE)
        else:
            words = [rng.choice(IDLE), words[0][0].lower() + words[0][1:], *words[1:]]
    text = " ".join(words)
    return text[0].upper() + text[1:]


def polite(order: str, rng: random.Random) -> str:
    """An order as a request: it wants the same answer, not a yes or no."""
    opening, mark = rng.choice(ASKED)
    return f"{opening} {order[0].lower()}{order[1:].rstrip('.')}{mark}"


def put(question: str, rng: random.Random) -> str:
    """A question as training puts it: nearly half of the time in the program's own form, else recast; half of
    the orders as requests; sometimes with words around it or idle words in it, without its mark or capital."""
    text = recast(question, rng) if rng.random() < 0.55 else question
    if text.split()[0] in ORDERS and text.count(".") == 1 and rng.random() < 0.5:
        text = polite(text, rng)
    roll = rng.random()
    if roll < 0.06:
        text = rng.choice(BEFORE) + text
    elif roll < 0.1:
        text += rng.choice(AFTER)
    elif roll < 0.16:
        text = text.rstrip("?.")
    elif roll < 0.22:
        text = text[0].lower() + text[1:]
    elif roll < 0.34:
        text = babble(text, rng)
    return text
