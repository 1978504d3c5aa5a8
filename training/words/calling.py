"""Segments with functions: what asks for a call and what does not, results and what is said after them."""

from __future__ import annotations

import random

from training.pictures.scenes import Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.words import conversations, honest
from training.words.facts import Fact, joined, pick
from training.words.functions import Function, argument, function_for, function_name, other_function
from training.words.phrasebook import put
from training.words.phrases import spelled, tally
from training.words.questions import Turn
from training.words.written import Piece, Reply, Segment, call, plain

ASK_FOR_CALLS = (
    "Call {f} with {w}.", "Call {f} with {w}.", "call {f} with {w}", "Use {f} with {w}.", "Run {f} with {w}.",
    "Please call {f} with {w}.", "Call the function {f} with {w}.", "Call the tool {f} with {w}.",
    "Use the {f} tool with {w}.", "Can you call {f} with {w}?", "Could you use {f} with {w}?", "Invoke {f} with {w}.",
    "Give {w} to {f}.", "Send {w} to {f}.", "Pass {w} to {f}.", "Find {w} and call {f} with it.",
    "Look at the picture and call {f} with {w}.", "I want you to run {f} with {w}.", "Apply {f} to {w}.",
    "What is {w}? Call {f} with it.", "Use {f} for {w}.", "{f} {w}.",
)  # fmt: skip
CLEARLY = tuple(form for form in ASK_FOR_CALLS if any(word in form.lower() for word in ("call", "tool", "invoke")))
"""No order to the model itself: "Count the circles." is one, whatever the functions."""
ASK_FOR_THE_CALL = ("Call the function with {w}.", "Call the tool with {w}.", "Use the tool with {w}.",
                    "Use your tool for {w}.", "Give {w} to the function.")  # fmt: skip
AND_THEN = ("{a} Then {b}", "{a} {b}", "{a} After that, {b}")
DONE = ("ok", "OK", "done", "Done.", "success", "saved", "true", "null", "accepted", '{"status": "ok"}', '{"ok": true}',
        "1 row saved")  # fmt: skip
FAILED = ("error", "Error: not found", "failed", '{"error": "no such thing"}', "error: too late", "Error")
DID, DID_NOT = "Done.", "It failed."


def request(name: str, words: str, rng: random.Random, forms: tuple[str, ...] = ASK_FOR_CALLS) -> str:
    """A sentence that asks for a call, now and then without its mark or capital."""
    text = rng.choice(forms).format(f=name if rng.random() < 0.9 else f'"{name}"', w=words)
    if rng.random() < 0.1 and not text.startswith(name):
        text = text[0].lower() + text[1:]
    return text.rstrip(".?") if rng.random() < 0.1 else text


def among(functions: list[Function], rng: random.Random, more: tuple[int, ...]) -> list[Function]:
    """The functions between others that nobody asks for."""
    taken = {function.name for function in functions}
    out = [*functions, *(other_function(rng, taken) for _ in range(rng.choice(more)))]
    rng.shuffle(out)
    return out


def arguments_of(function: Function, asked: list[Fact]) -> dict[str, object]:
    """A function's arguments from the facts asked for."""
    return {p.name: argument(fact, p) for p, fact in zip(function.parameters, asked, strict=True)}


def asked_call(scene: Scene, rng: random.Random) -> Segment:
    """One call, in the words of a request."""
    asked = pick(scene, rng, rng.choices((1, 2, 3), (68, 26, 6))[0])
    function = function_for(asked, rng, set())
    segment = Segment(among([function], rng, (0, 0, 1, 1, 2)))
    words = joined(asked, rng)
    alone = len(segment.functions) == 1 and rng.random() < 0.15
    question = rng.choice(ASK_FOR_THE_CALL).format(w=words) if alone else request(function.name, words, rng)
    return segment.said(question, Reply("call", tuple(call(function.name, arguments_of(function, asked), rng))))


def given_call(rng: random.Random) -> Segment:
    """A call whose value the question says."""
    tint, name = rng.choice(COLOUR_NAMES), rng.choice(SHAPES)
    attribute, value = rng.choice((("colour", tint), ("shape", name), ("count", rng.randint(0, 99))))
    fact = Fact(attribute, f"the {attribute} {value}" if rng.random() < 0.5 else str(value), "", value)
    function = function_for([fact], rng, set())
    reply = Reply("call", tuple(call(function.name, arguments_of(function, [fact]), rng)))
    return Segment(among([function], rng, (0, 1))).said(request(function.name, fact.phrase, rng), reply)


def two_calls(scene: Scene, rng: random.Random) -> Segment:
    """Two calls in one answer."""
    asked, taken = pick(scene, rng, 2), set[str]()
    functions = [function_for([fact], rng, taken) for fact in asked]
    first, second = (request(f.name, fact.phrase, rng) for f, fact in zip(functions, asked, strict=True))
    pieces: list[Piece] = []
    for function, fact in zip(functions, asked, strict=True):
        pieces += call(function.name, arguments_of(function, [fact]), rng)
    return Segment(among(functions, rng, (0, 0, 1))).said(
        rng.choice(AND_THEN).format(a=first, b=second), Reply("calls", tuple(pieces))
    )


def after_result(scene: Scene, rng: random.Random) -> Segment:
    """A call, its result, what is said of it, sometimes one more question."""
    segment = asked_call(scene, rng)
    roll = rng.random()
    if roll < 0.5:
        result, said = rng.choice(DONE), DID
    elif roll < 0.7:
        result, said = rng.choice(FAILED), DID_NOT
    else:
        result = rng.choice((str(rng.randint(0, 999)), rng.choice(COLOUR_NAMES), rng.choice(SHAPES)))
        said = f"The result is {result}."
    segment.said(result, plain("result", said), "tool")
    if rng.random() < 0.3:
        _, (question, answer) = conversations.single(scene, rng, {"colour": 1, "shape": 1, "count": 1, "existence": 1})
        segment.said(put(question, rng), plain("beside", answer))
    return segment


def forced_call(turn: Turn, value: object, rng: random.Random) -> Segment:
    """A plain question where the protocol demands a call: only the value is the model's."""
    fact = Fact(rng.choice(("colour", "shape", "count", "word")), "", "", value)  # type: ignore[arg-type]
    function = function_for([fact], rng, set())
    pieces = call(function.name, arguments_of(function, [fact]), rng, forced=True)
    return Segment(among([function], rng, (0, 0, 1))).said(put(turn[0], rng), Reply("forced", tuple(pieces)))


def no_call(turn: Turn, rng: random.Random) -> Segment:
    """An ordinary question beside functions."""
    return Segment(among([], rng, (1, 1, 2, 3))).said(put(turn[0], rng), plain("beside", turn[1]))


def unknown_function(scene: Scene | None, rng: random.Random) -> Segment:
    """A call of a function that is not defined, or of none at all."""
    name = function_name(rng)
    functions = [f for f in among([], rng, (0, 1, 1, 2)) if f.name != name]
    words = pick(scene, rng)[0].phrase if scene else f"the {spelled(rng)} of the {rng.choice(SHAPES)}"
    return Segment(functions).said(
        request(name, words, rng, CLEARLY), plain("unknown", f"There is no function {name}.")
    )


def missing_thing(scene: Scene | None, rng: random.Random) -> Segment | None:
    """A call with something that is not in the picture, or without a picture."""
    missing = [name for name in SHAPES if scene is None or tally(scene, None, name) == 0]
    if not missing:
        return None
    name = rng.choice(missing)
    fact = Fact("colour", f"the {spelled(rng)}", f"the {name}", "red")
    function = function_for([fact], rng, set())
    answer = f"There is no {name}." if scene else conversations.NO_PICTURE
    question = request(function.name, fact.phrase, rng)
    return Segment(among([function], rng, (0, 1))).said(question, plain("missing", answer))


def without_picture(rng: random.Random) -> Segment:
    """Functions and no picture."""
    roll = rng.random()
    if roll < 0.3:
        return given_call(rng)
    if roll < 0.6:
        segment = missing_thing(None, rng)
        assert segment is not None
        return segment
    if roll < 0.7:
        return no_call(honest.outside(rng), rng)
    phrasings, answer = rng.choice(conversations.SMALL_TALK)
    return no_call((rng.choice(phrasings), answer), rng)
