"""The small world of the packaged model: its shapes, colours, words and the classes a picture token can carry.

Only constants live here, so that drawing, questions, labels and tests agree.  It knows nothing about pixels or text.
"""

from __future__ import annotations

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 35, 35),
    "orange": (250, 140, 20),
    "yellow": (240, 215, 20),
    "green": (40, 160, 60),
    "blue": (40, 85, 220),
    "purple": (135, 50, 170),
    "pink": (250, 130, 190),
    "brown": (125, 75, 35),
}
COLOUR_NAMES = tuple(COLOURS)
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "gray": (150, 150, 150),
    "black": (15, 15, 15),
    "cream": (245, 230, 195),
}
BACKGROUND_NAMES = tuple(BACKGROUNDS)
SIZES = ("small", "large")
WORDS = (
    "CAT", "DOG", "SUN", "BOX", "HAT", "CUP", "KEY", "PEN", "BUS", "FOX", "JAM", "MAP", "NET", "OWL",
    "RED", "ZOO", "VAN", "WEB", "ICE", "TREE", "FISH", "BIRD", "MOON", "STAR", "QUIZ", "GOLD", "LAMP", "YARD",
)  # fmt: skip
DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Class of a patch: 0 nothing, then shapes, digits, letters.
CLASSES: tuple[str, ...] = ("", *SHAPES, *DIGITS, *LETTERS)
CLASS_INDEX = {name: index for index, name in enumerate(CLASSES)}

LEARNED = 768  # tokens that the tokenizer learns, at most
VOCABULARY = LEARNED + 4  # with the marks of functions and results, and two places left; divides by 4 ranks
SIDE = 128  # pixels of the squashed picture, both ways
GRID = 8  # patches a side
PATCHES = GRID * GRID
SMALL_RADIUS = (0.085, 0.110)  # of the picture's short side
LARGE_RADIUS = (0.160, 0.195)
POOR_TEXT = {("yellow", "white"), ("yellow", "cream"), ("brown", "black"), ("pink", "cream")}
