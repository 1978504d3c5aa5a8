"""Grammars of calls: llguidance accepts what the format's parser reads as calls of the tools, and no other text."""

from __future__ import annotations

import random
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from mmserve.httpserver.output.parsing.formats import CALLS, Format
from mmserve.httpserver.output.parsing.grammar.tool_grammar import optional_tool_grammar, tool_grammar
from tests.fakes.http.http_services import byte_tokenizer
from tests.unit.httpserver.output.parsing.examples import BEGIN, END, ONE, ONE_END, SEP, THINKING, meaning
from tests.unit.httpserver.output.parsing.test_machine import format_of, read

llguidance = pytest.importorskip("llguidance")
llguidance_numpy = pytest.importorskip("llguidance.numpy")

TOOLS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "deep": {"$ref": "#/$defs/deep"},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"deep": {"type": "object", "properties": {"x": {"type": "array"}}, "additionalProperties": False}},
    },
    "g": {"type": "object", "properties": {}, "additionalProperties": False},
}
F, G = ("call", "f", '{"city": "Oslo", "days": 3}'), ("call", "g", "{}")
FULL = ("call", "f", '{"city": "a \\"b\\" é", "days": -1, "deep": {"x": [1, {}]}, "kind": "b"}')

F_TAGS = "<function=f>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
G_TAGS = "<function=g>\n</function>"
FULL_TAGS = (
    '<function=f>\n<parameter=city>\na "b" é\n</parameter>\n<parameter=days>\n-1\n</parameter>\n'
    '<parameter=deep>\n{"x": [1, {}]}\n</parameter>\n<parameter=kind>\nb\n</parameter>\n</function>'
)
FULL_PYTHON = 'f(city="a \\"b\\" é", days=-1, deep={"x": [1, {}]}, kind=\'b\')'
Q = '<|"|>'


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def coder(function: str) -> str:
    return f"<tool_call>\n{function}\n</tool_call>"


def fenced(name: str, arguments: str) -> str:
    return f"{ONE}function{SEP}{name}\n```json\n{arguments}\n```{ONE_END}"


ONE_CALL = {
    "hermes": [(tagged("f", F[2]), F), (tagged("g", "{}"), G), (tagged("f", FULL[2]), FULL)],
    "qwen3-coder": [(coder(F_TAGS), F), (coder(G_TAGS), G), (coder(FULL_TAGS), FULL)],
    "llama3-json": [(f'{{"name": "{call[1]}", "parameters": {call[2]}}}', call) for call in (F, G, FULL)],
    "mistral": [(f"[TOOL_CALLS]{call[1]}[ARGS]{call[2]}", call) for call in (F, G, FULL)],
    "pythonic": [('[f(city="Oslo", days=3)]', F), ("[g()]", G), (f"[{FULL_PYTHON}]", FULL)],
    "lfm2": [(f"<|tool_call_start|>[{FULL_PYTHON}]<|tool_call_end|>", FULL)],
    "olmo3": [("<function_calls>\ng()\n</function_calls>", G)],
    "gemma": [(f"```tool_code\n{FULL_PYTHON}\n```", FULL), ("```tool_code\ng()\n```", G)],
    "gemma4": [
        (f"<|tool_call>call:f{{city:{Q}Oslo{Q},days:3}}<tool_call|>", ("call", "f", '{"city":"Oslo","days":3}')),
        (
            f'<|tool_call>call:f{{city:{Q}a "b" é{Q},days:-1,deep:{{x:[1,{{}}]}},kind:{Q}b{Q}}}<tool_call|>',
            ("call", "f", '{"city":"a \\"b\\" é","days":-1,"deep":{"x":[1,{}]},"kind":"b"}'),
        ),
        ("<|tool_call>call:g{}<tool_call|>", G),
    ],
    "deepseek": [(BEGIN + fenced(call[1], call[2]) + END, call) for call in (F, G, FULL)],
    "deepseek-v3.1": [(f"{BEGIN}{ONE}{call[1]}{SEP}{call[2]}{ONE_END}{END}", call) for call in (F, G, FULL)],
}
TWO_CALLS = {
    "hermes": f"{tagged('g', '{}')}\n{tagged('g', '{}')}",
    "qwen3-coder": f"{coder(G_TAGS)}\n{coder(G_TAGS)}",
    "llama3-json": '{"name": "g", "parameters": {}}; {"name": "g", "parameters": {}}',
    "mistral": "[TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]g[ARGS]{}",
    "pythonic": "[g(), g()]",
    "lfm2": "<|tool_call_start|>[g(), g()]<|tool_call_end|>",
    "olmo3": "<function_calls>\ng()\ng()\n</function_calls>",
    "gemma": "```tool_code\ng()\ng()\n```",
    "gemma4": "<|tool_call>call:g{}<tool_call|><|tool_call>call:g{}<tool_call|>",
    "deepseek": f"{BEGIN}{fenced('g', '{}')}\n{fenced('g', '{}')}{END}",
    "deepseek-v3.1": f"{BEGIN}{ONE}g{SEP}{{}}{ONE_END}{ONE}g{SEP}{{}}{ONE_END}{END}",
}
CASES = [(name, *case) for name, cases in ONE_CALL.items() for case in cases]
CALLS_ONLY = pytest.mark.parametrize("name", CALLS)


def added_tokens(format: Format) -> tuple[str, ...]:
    """Literals of the format that its checkpoints have as tokens."""
    return tuple(
        text for text in format.literals if text[0] + text[-1] in ("<>", "[]") and not text.startswith("<func")
    )


@cache
def tokenizer(added: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    tokens = byte_tokenizer()
    tokens.add_special_tokens(list(added))
    ids = {name: tokens.token_to_id(name) for name in added}
    return llguidance.LLTokenizer(tokens.to_str(), n_vocab=tokens.get_vocab_size(), eos_token=[256]), ids


def accepts(grammar: str, text: str, added: tuple[str, ...] = ()) -> bool:
    """Whether ``text`` is a whole answer of the grammar. Contents of added tokens in it are those tokens."""
    tokens, ids = tokenizer(added)
    matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    while text:
        name = next((name for name in sorted(ids, key=len, reverse=True) if text.startswith(name)), "")
        step = [ids[name]] if name else list(text[0].encode())
        if matcher.try_consume_tokens(step) < len(step):
            return False
        text = text[len(name) or 1 :]
    return bool(matcher.is_accepting())


def grammar(name: str, added: tuple[str, ...], *, parallel: bool = True, thinking: bool = False, **more: Any) -> str:
    format = format_of(name)
    ids = tokenizer(added)[1]
    return tool_grammar(format if thinking else Format(format.calls), more.pop("tools", TOOLS), parallel, ids, **more)


@pytest.mark.parametrize(("name", "text", "call"), CASES)
@pytest.mark.parametrize("as_tokens", [True, False])
def test_what_is_accepted_is_read_as_the_call(name: str, text: str, call: tuple[str, ...], as_tokens: bool) -> None:
    added = added_tokens(format_of(name)) if as_tokens else ()
    if name == "mistral" and not as_tokens:
        pytest.skip("without a token for it, arguments do not follow names")
    assert accepts(grammar(name, added), text, added)
    assert accepts(grammar(name, added, parallel=False), text, added)
    assert meaning(read(format_of(name), [text], tools=TOOLS)) == [call]


@CALLS_ONLY
def test_whatever_a_model_writes_under_the_grammar_is_read_as_calls(name: str) -> None:
    """Tokens are drawn at random from those that the grammar allows."""
    added = added_tokens(format_of(name))
    answers = [drawn(grammar(name, added, thinking=True), added, random.Random(seed)) for seed in range(4)]
    complete = [parts for parts in answers if parts is not None]
    assert complete
    for parts in complete:
        found = meaning(read(format_of(name), parts, tools=TOOLS, markers=added))
        kinds = [entry[0] for entry in found]
        assert set(kinds[kinds[0] == "reasoning" :]) == {"call"}, (parts, found)
        assert {entry[1] for entry in found if entry[0] == "call"} <= set(TOOLS)


def drawn(grammar: str, added: tuple[str, ...], rng: random.Random) -> list[str] | None:
    """An answer of the grammar, cut at its added tokens; None if it has not ended after 300 tokens."""
    tokens, ids = tokenizer(added)
    names = {id: name for name, id in ids.items()}
    matcher = llguidance.LLMatcher(tokens, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0)
    bits = llguidance_numpy.allocate_token_bitmask(1, tokens.vocab_size)
    written: list[int] = []
    while not matcher.is_accepting():
        llguidance_numpy.fill_next_token_bitmask(matcher, bits, 0)
        allowed = np.flatnonzero(np.unpackbits(bits[0].view(np.uint8), bitorder="little")).tolist()
        plain = [token for token in allowed if token in names or 32 <= token < 127 or token == 10]
        ending = [token for token in plain if token in names or chr(token) in '"}])<']
        written.append(rng.choice(ending if ending and rng.random() < 0.5 else plain))
        assert matcher.consume_token(written[-1])
        if len(written) == 300:
            return None
    return ["".join(map(chr, group)) if not id else names[id] for id, group in _grouped(written, names)]


def _grouped(tokens: list[int], names: dict[int, str]) -> list[tuple[int, list[int]]]:
    """Runs of bytes, each with 0, and added tokens, each by itself with its id."""
    groups = groupby(enumerate(tokens), lambda entry: (entry[1], entry[0]) if entry[1] in names else (0, 0))
    return [(key[0], [token for _, token in group]) for key, group in groups]


@CALLS_ONLY
def test_several_calls_only_if_they_are_allowed(name: str) -> None:
    added = added_tokens(format_of(name))
    assert accepts(grammar(name, added), TWO_CALLS[name], added)
    assert not accepts(grammar(name, added, parallel=False), TWO_CALLS[name], added)
    assert meaning(read(format_of(name), [TWO_CALLS[name]], tools=TOOLS)) == [G, G]


@pytest.mark.parametrize(("name", "text", "call"), CASES)
def test_a_named_tool_is_the_only_one(name: str, text: str, call: tuple[str, ...]) -> None:
    added = added_tokens(format_of(name))
    only_g = grammar(name, added, tools={"g": TOOLS["g"]})
    assert accepts(only_g, text, added) == (call[1] == "g")


@pytest.mark.parametrize(("name", "text", "call"), CASES)
def test_nothing_else_is_accepted(name: str, text: str, call: tuple[str, ...]) -> None:
    added = added_tokens(format_of(name))
    text_grammar = grammar(name, added)
    for other in (
        "",
        "Hello",
        f"Hello {text}",
        f"{text} bye",
        text[:-3],
        text.replace("Oslo", "").replace("days", "weeks"),
    ):
        if other != text:
            assert not accepts(text_grammar, other, added), other
    if call == F:
        assert not accepts(text_grammar, text.replace("3", '"3"').replace("\n3\n", "\nx\n"), added)


@CALLS_ONLY
def test_a_thought_may_come_first_and_one_that_the_prompt_began_goes_on(name: str) -> None:
    format = format_of(name)
    assert format.thinking is not None
    opened, closed = format.thinking.open, format.thinking.close
    text, call = ONE_CALL[name][0]
    tokens = tuple(
        literal for literal in (*added_tokens(Format(format.calls)), opened, closed) if not literal.endswith("thought")
    )
    for added in (tokens, ()):
        if name == "mistral" and not added:
            continue
        free, inside = grammar(name, added, thinking=True), grammar(name, added, thinking=True, in_reasoning=True)
        thought = f"{opened}\nIs it <b>?\n{closed}\n\n"
        assert accepts(free, text, added)
        assert accepts(free, thought + text, added)
        assert accepts(inside, f"hm {closed}\n{text}", added)
        assert not accepts(inside, text, added) or not added
        assert not accepts(free, f"{opened} hm {text[:5]}", added)
        assert meaning(read(format, [thought + text], tools=TOOLS)) == [("reasoning", "Is it <b>?"), call]


def test_text_and_calls_of_the_allowed_tools() -> None:
    format = Format(CALLS["hermes"])
    added = ("<tool_call>", "</tool_call>")
    ids = tokenizer(added)[1]
    text = f"Well. {tagged('g', '{}')}\nDone. {tagged('g', '{}')}"
    several = optional_tool_grammar(format, {"g": TOOLS["g"]}, True, ids)
    one = optional_tool_grammar(format, {"g": TOOLS["g"]}, False, ids)
    assert several is not None
    assert one is not None
    assert accepts(several, text, added)
    assert not accepts(one, text, added)
    for found in (several, one):
        assert accepts(found, "Only text", added)
        assert accepts(found, f"Well. {tagged('g', '{}')}", added)
        assert not accepts(found, f"Well. {tagged('f', F[2])}", added)


def test_text_is_not_constrained_where_no_token_begins_calls() -> None:
    assert optional_tool_grammar(Format(CALLS["hermes"]), TOOLS, True, {}) is None


def test_older_mistral_checkpoints_write_a_list() -> None:
    added = ("[TOOL_CALLS]",)
    text = '[TOOL_CALLS][{"name": "g", "arguments": {}}, {"name": "g", "arguments": {}}]'
    assert accepts(grammar("mistral", added), text, added)
    assert meaning(read(format_of("mistral"), [text], tools=TOOLS)) == [G, G]


@pytest.mark.parametrize(
    ("name", "tools"),
    [
        ("hermes", {}),
        ("pythonic", {"f": {"properties": {"not a name": {}}}}),
        ("pythonic", {"f": {"properties": {"class": {}}}}),
        ("qwen3-coder", {"f": {"properties": {"a>b": {}}}}),
        ("gemma4", {"f": {"properties": {"a:b": {}}}}),
        ("qwen3-coder", {"f": {"required": ["a"]}}),
        ("qwen3-coder", {"f": {"required": [[]]}}),
        ("hermes", {"f": {"type": "string"}}),
    ],
)
def test_tools_that_the_format_cannot_call_are_refused(name: str, tools: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tool|argument"):
        grammar(name, (), tools=tools)


def test_a_format_without_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="no format"):
        tool_grammar(Format(), TOOLS, True, {})


def test_thinking_styles_of_the_examples_are_known() -> None:
    assert set(THINKING) <= set(CALLS)
