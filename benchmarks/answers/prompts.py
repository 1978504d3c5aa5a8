"""Prompts of many kinds and lengths from a seed. A third of them share one of four long beginnings."""

from __future__ import annotations

import random

from mmserve.cli.bench.plan import words

_KINDS = ("words", "numbers", "code", "unicode", "list")
_UNICODE = "é ü ß ñ ж щ λ Ω 漢 字 日 本 の は 한 국 🙂 🚀 ← ≠ €".split()
_SHORTEST, _LONGEST = 3, 400
_SHARED_SHARE = 0.3
_NUM_PREFIXES = 4
_PREFIX_WORDS = 120


def prompts(count: int, seed: int) -> list[str]:
    """``count`` distinct texts of about 3 to 400 tokens with log-uniform lengths. Three in ten start with one of four
    long prefixes. The same seed gives the same texts."""
    rng = random.Random(f"answers-{seed}")
    prefixes = [words(rng, _PREFIX_WORDS) for _ in range(_NUM_PREFIXES)]
    made: dict[str, None] = {}
    while len(made) < count:
        made[_prompt(rng, prefixes)] = None
    return list(made)


def _prompt(rng: random.Random, prefixes: list[str]) -> str:
    length = round(_SHORTEST * (_LONGEST / _SHORTEST) ** rng.random())
    kind = rng.choice(_KINDS)
    if rng.random() < _SHARED_SHARE:
        return f"{rng.choice(prefixes)} {_text(rng, kind, max(_SHORTEST, length - _PREFIX_WORDS))}"
    return _text(rng, kind, length)


def _text(rng: random.Random, kind: str, num_tokens: int) -> str:
    """A text of about ``num_tokens`` tokens."""
    match kind:
        case "numbers":
            return " + ".join(str(rng.randrange(1000)) for _ in range(-(-num_tokens // 5))) + " ="
        case "code":
            lines = (f"    {words(rng, 1)} = {words(rng, 1)}[{rng.randrange(100)}]" for _ in range(-(-num_tokens // 8)))
            return "\n".join([f"def {words(rng, 1)}():", *lines])
        case "unicode":
            return " ".join(rng.choice((words(rng, 1), rng.choice(_UNICODE))) for _ in range(-(-num_tokens // 2)))
        case "list":
            return "\n".join(f"- {words(rng, 4)}" for _ in range(-(-num_tokens // 6)))
    return words(rng, num_tokens).capitalize() + "?"
