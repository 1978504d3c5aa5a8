"""Questions that cannot be answered and what to say then, as training asks them.

The thing is not there, no picture came, or the question is about something outside the small world.  The examination's
unanswerable questions (`training.exam.honesty`) are others.
"""

from __future__ import annotations

import random

from training.pictures.scenes import Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.words.conversations import NO_PICTURE, two_pictures
from training.words.phrases import named, noun, spelled, tally
from training.words.questions import ASK, Turn

OUTSIDE = "Sorry, I only know simple pictures."
# fmt: off
TOPICS = (
    "France", "Japan", "Rome", "the sea", "the moon", "a horse", "an elephant", "the president", "the queen",
    "football", "music", "a guitar", "my mother", "my name", "the weather", "tomorrow", "Monday",
    "the year", "money", "bread", "coffee", "cheese", "a car", "a train", "an engine", "a computer", "Python",
    "the internet", "history", "the war", "a river", "a mountain", "gold", "water", "the doctor", "a poem", "a song",
    "a story", "the news", "a book", "a film", "the door", "a house", "the man", "the woman", "the child", "a tree",
    "flowers", "a bird", "my dog", "a cat", "physics", "chemistry", "the sky", "the kitchen", "an apple", "soup",
    "a recipe", "my health", "love", "life", "time",
)
ABOUT = (
    "Tell me about {t}.", "What is {t}?", "Who is {t}?", "Where is {t} from?", "How old is {t}?",
    "Why is {t} so famous?", "What do you think of {t}?", "How far is it to {t}?", "When was {t} made?",
    "How much does {t} cost?", "Explain {t}.", "Write something about {t}.", "Is {t} good or bad?",
    "Do you like {t}?", "What is the capital of {t}?", "Sing {t}.", "Translate {t} into French.",
    "How do I find {t}?", "Can you buy {t} for me?", "What is the best {t}?", "Who made {t}?",
    "What is the meaning of {t}?", "Remind me of {t}.", "Which is better, {t} or {u}?",
    "What have {t} and {u} in common?", "What is the man doing?", "Is the woman happy?", "What is {t} made of?",
    "How does {t} taste?", "How does {t} work?", "What time is it?", "Solve this equation.", "Fix my code.",
    "Who wrote this?", "Who drew the picture?", "How much is {n} plus {m}?", "What is {n} times {m}?",
    "Is {n} a prime number?", "Count to {n}.", "Where was this picture taken?", "When was this picture taken?",
    "What will happen next?", "What does it smell like?", "What was here yesterday?", "What is behind the picture?",
    "Whose picture is this?", "Which town is this?", "Why was this drawn?",
)
# fmt: on
SYLLABLES = (
    "ba",
    "ko",
    "mi",
    "ra",
    "tu",
    "ne",
    "so",
    "li",
    "ga",
    "ve",
    "zu",
    "po",
    "sha",
    "ter",
    "ing",
    "ol",
    "und",
    "est",
)


def outside(rng: random.Random) -> Turn:
    """Something outside the world, now and then about a word that nobody knows."""
    topic, other = rng.sample(TOPICS, 2)
    if rng.random() < 0.25:
        topic = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))
    if rng.random() < 0.06:
        return " ".join(
            "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(2, 6))
        ), OUTSIDE
    numbers = {"n": rng.randint(2, 99), "m": rng.randint(2, 99)}
    return rng.choice(ABOUT).format(t=topic, u=other, **numbers), OUTSIDE


def without_picture(scene: Scene, rng: random.Random) -> Turn:
    """A question about a picture, or two, that never came."""
    if rng.random() < 0.2:
        return two_pictures(scene, scene, rng)[0], NO_PICTURE
    while True:
        turn = ASK[rng.choice(list(ASK))](scene, rng)
        if turn:
            return turn[0], NO_PICTURE


def absent_shape(scene: Scene, rng: random.Random) -> Turn | None:
    """A question that takes a missing shape for granted."""
    missing = [name for name in SHAPES if tally(scene, None, name) == 0]
    others = named(scene, rng)
    if not missing:
        return None
    name = rng.choice(missing)
    forms = [
        f"What {spelled(rng)} is the {name}?",
        f"Which {spelled(rng)} is the {name}?",
        f"Where is the {name}?",
        f"Where do you see the {name}?",
        f"Is the {name} small or large?",
        f"How big is the {name}?",
    ]
    if others:
        side = rng.choice(("left of", "right of", "above", "below"))
        pair = [f"the {name}", others[0][1]]
        rng.shuffle(pair)
        forms += [f"Is {pair[0]} {side} {pair[1]}?"] * 2
    return rng.choice(forms), f"There is no {name}."


def absent_colour(scene: Scene, rng: random.Random) -> Turn | None:
    """A question about an object of a colour that nothing has."""
    missing = [tint for tint in COLOUR_NAMES if tally(scene, tint, None) == 0]
    if not missing or scene.chars:
        return None
    tint = rng.choice(missing)
    forms = (
        f"What shape is the {tint} object?",
        f"Where is the {tint} object?",
        f"What is the shape of the {tint} object?",
        f"How big is the {tint} object?",
    )
    return rng.choice(forms), f"There is no {tint} object."


def absent_writing(scene: Scene, rng: random.Random) -> Turn | None:
    """A question about a number or a word that is not written: half of them orders, of which `put` makes requests.
    A model that has met few of those says "no" to "Can anybody read the word?"."""
    what = rng.choice(("number", "word"))
    if scene.chars and noun(scene) == what:
        return None
    forms = (
        f"What {what} is shown?",
        *(f"Read the {what}.",) * 3,
        f"Which {what} is written?",
        f"What {spelled(rng)} is the {what}?",
    )
    return rng.choice(forms), f"There is no {what}."


def about_picture(scene: Scene, rng: random.Random) -> Turn:
    """A question on a picture that cannot be answered from it."""
    for ask in rng.choices((absent_shape, absent_colour, absent_writing), (3, 2, 3), k=2):
        if turn := ask(scene, rng):
            return turn
    return outside(rng)
