"""The output machine: what models write means the same however it is cut, and nothing is lost."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.output.parsing.formats import CALLS, Format, choose
from mmserve.httpserver.output.parsing.layouts.layout import Tools
from mmserve.httpserver.output.parsing.machine import OutputMachine
from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, join
from tests.unit.httpserver.output.parsing.examples import EXAMPLES, THINKING, TOOLS, Meaning, meaning

CASES = [(name, *example) for name, examples in EXAMPLES.items() for example in examples]


def format_of(name: str) -> Format:
    return choose(name, THINKING.get(name, "think"), "")


def read(
    format: Format,
    parts: list[str],
    *,
    tools: Tools | None = TOOLS,
    reasoning: bool = False,
    markers: tuple[str, ...] = (),
) -> list[Piece]:
    """What the parts of a text mean. A part that is one of ``markers`` is a marker."""
    machine = OutputMachine(format, tools, reasoning, markers)
    pieces = []
    for part in parts:
        pieces += machine.push_marker(part) if part in markers else machine.push(part)
    return join(pieces + machine.finish())


def cut(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_examples(name: str, text: str, expected: Meaning) -> None:
    assert meaning(read(format_of(name), [text])) == expected
    assert meaning(read(format_of(name), list(text))) == expected


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_examples_of_checkpoints_whose_literals_are_special_tokens(name: str, text: str, expected: Meaning) -> None:
    """Every literal of the format is a marker, where the example uses it as one."""
    format = format_of(name)
    markers = tuple(literal for literal in format.literals if literal[0] + literal[-1] in ("<>", "[]"))
    parts, original = [], text
    while text:
        marker = next((literal for literal in markers if text.startswith(literal)), text[0])
        parts.append(marker)
        text = text[len(marker) :]
    if text_of_markers(expected, markers) or original in PLAIN_ONLY:
        return
    assert meaning(read(format, parts, markers=markers)) == expected


def text_of_markers(expected: Meaning, markers: tuple[str, ...]) -> bool:
    """Whether an argument contains a marker's characters. No model writes a special token there."""
    arguments = [part for entry in expected if entry[0] == "call" for part in entry[1:]]
    return any(marker in argument for argument in arguments for marker in markers)


PLAIN_ONLY = (
    '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_',  # a special token is never cut
    " Write <think> first.",  # a special token is never what a text is about
)


@pytest.mark.parametrize("name", CALLS)
def test_without_tools_calls_are_text(name: str) -> None:
    for text, _ in EXAMPLES[name]:
        shown = read(Format(format_of(name).calls, None), [text], tools=None)
        assert meaning(shown) == [("text", text)]


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str]:
    """A format, and a damaged mixture of its examples and literals."""
    name = draw(st.sampled_from(sorted(EXAMPLES)))
    rng = random.Random(draw(st.integers(0, 2**32)))
    texts = [text for text, _ in EXAMPLES[name]]
    parts = [rng.choice([*texts, *format_of(name).literals, "\n", " {", "]", '"']) for _ in range(rng.randint(1, 4))]
    text = "".join(parts)
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(["", '"', "}", "<", "\\", " ", "\n" * 600]) + text[at + rng.randint(0, 2) :]
    return name, text


@given(written(), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_the_pieces_do_not_depend_on_how_the_text_is_cut(
    written: tuple[str, str], cuts: list[int], reasoning: bool
) -> None:
    name, text = written
    format = format_of(name)
    whole = read(format, [text], reasoning=reasoning)
    assert read(format, cut(text, cuts), reasoning=reasoning) == whole
    assert read(format, list(text), reasoning=reasoning) == whole


@given(written(), st.booleans())
def test_calls_are_numbered_and_complete_ones_parse(written: tuple[str, str], reasoning: bool) -> None:
    name, text = written
    pieces = read(format_of(name), [text], reasoning=reasoning)
    assert [piece.call for piece in pieces if isinstance(piece, CallStart)] == list(
        range(sum(isinstance(piece, CallStart) for piece in pieces))
    )
    arguments = {piece.call: piece.json for piece in pieces if isinstance(piece, CallArguments)}
    for piece in pieces:
        if isinstance(piece, CallEnd):
            assert isinstance(msgspec.json.decode(arguments[piece.call]), dict)


@given(st.sampled_from(sorted(EXAMPLES)), st.text("ab <>{}[]`|:\n\"'(=)\\", max_size=60))
def test_text_without_calls_and_thoughts_is_shown_as_it_is(name: str, text: str) -> None:
    """Only a marker that begins something may disappear."""
    format = format_of(name)
    pieces = read(format, ["Hi ", text])
    if not any(isinstance(piece, CallStart) for piece in pieces):
        assert meaning(pieces) == [("text", f"Hi {text}")]


@given(written())
def test_nothing_is_lost(written: tuple[str, str]) -> None:
    """Every word of the text is shown, is an argument, or belongs to the head of a call."""
    name, text = written
    pieces = read(format_of(name), ["word0 ", text, " word1"])
    shown = "".join(str(part) for entry in meaning(pieces) for part in entry[1:])
    assert "word0" in shown
    assert "word1" in shown


@pytest.mark.parametrize("name", CALLS)
def test_openers_without_a_call_are_text(name: str) -> None:
    format = format_of(name)
    assert format.calls is not None
    text = format.calls.open[0] * 500
    assert meaning(read(format, cut(text, list(range(0, len(text), 7))))) == [("text", text)]


def test_what_is_too_long_to_be_read_again_is_text_as_a_whole() -> None:
    """Otherwise each opener inside it could be read with all that follows it."""
    call = '<tool_call>{"name": "g", "arguments": {}}'
    rest = '{"arguments": {"a": [' + call + "x" * 600 + "]}, 1}"
    assert meaning(read(format_of("hermes"), [call, rest])) == [("call", "g", "{}"), ("text", rest)]
    assert meaning(read(format_of("hermes"), ["<tool_call>", rest])) == [("text", f"<tool_call>{rest}")]


def test_a_marker_is_never_confused_with_the_same_characters() -> None:
    format, markers = format_of("hermes"), ("<tool_call>", "</tool_call>", "<think>", "</think>")
    call = ["<tool_call>", '{"name": "g", "arguments": {}}', "</tool_call>"]
    assert meaning(read(format, call, markers=markers)) == [("call", "g", "{}")]
    machine = OutputMachine(format, TOOLS, False, markers)
    pieces = [piece for part in call for piece in machine.push(part)]
    assert meaning(join(pieces + machine.finish())) == [("text", "".join(call))]


def test_a_marker_ends_arguments_that_do_not_end() -> None:
    parts = ["<tool_call>", '{"name": "f", "arguments": {"city": "Os', "</tool_call>", " and"]
    shown = read(format_of("hermes"), parts, markers=("<tool_call>", "</tool_call>"))
    assert meaning(shown) == [("cut", "f", '{"city": "Os'), ("text", "and")]


def test_lone_surrogates_in_text_are_no_markers() -> None:
    assert meaning(read(format_of("hermes"), ["a\ud800b"], markers=("<tool_call>",))) == [("text", "a\ufffdb")]


def test_a_thought_that_the_prompt_began_goes_on() -> None:
    format = format_of("hermes")
    assert meaning(read(format, ["hm</think>\nHi"], reasoning=True)) == [("reasoning", "hm"), ("text", "Hi")]
    assert meaning(read(format, ["<think>hm</think>Hi"], reasoning=True)) == [("reasoning", "hm"), ("text", "Hi")]
    assert meaning(read(format, ["hm\n"], reasoning=True)) == [("reasoning", "hm\n")]


def test_text_and_complete_arguments_do_not_wait_for_the_end() -> None:
    machine = OutputMachine(format_of("hermes"), TOOLS, False)
    assert meaning(machine.push("Hello wor")) == [("text", "Hello wor")]
    assert meaning(machine.push('ld <tool_call>\n{"name": "f", "arguments": {"a": "b')) == [
        ("text", "ld"),
        ("cut", "f", '{"a": "b'),
    ]
    assert machine.push("c") == [CallArguments(0, "c")]
    assert machine.push('"}') == [CallArguments(0, '"}'), CallEnd(0)]
