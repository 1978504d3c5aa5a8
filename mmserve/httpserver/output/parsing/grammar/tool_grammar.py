"""The grammar of an answer that calls tools in the model's own format. Pure.

What the grammar accepts, the format's parser reads as calls of the given tools with arguments of their schemas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from mmserve.httpserver.output.parsing.formats import Calls, Format, Thinking
from mmserve.httpserver.output.parsing.grammar.calls import block
from mmserve.httpserver.output.parsing.grammar.rules import ANYTHING, Rules
from mmserve.httpserver.output.parsing.layouts.layout import Tools

_ANSWER = "answer"
"""Name of the client's grammar inside another."""


def tool_grammar(
    format: Format, tools: Tools, parallel: bool, tokens: Mapping[str, int], *, in_reasoning: bool = False
) -> str:
    """The grammar, in llguidance's Lark notation, of an answer that is one call or, if ``parallel``, several.

    ``tools``: those that may be called: all, the one that is named, or those that are allowed.
    ``tokens``: ids of the tokenizer's added tokens by their contents.
    ``in_reasoning``: the prompt ends inside a thought. Otherwise a thought may come before the calls.

    Raises ValueError if the format has no calls, there are no tools, or one cannot be called in this format.
    """
    rules = Rules(tokens)
    calls = _calls(rules, format, tools, parallel)
    return rules.text(" ".join(filter(None, (_thought(rules, format.thinking, in_reasoning), calls))))


def optional_tool_grammar(
    format: Format, tools: Tools, parallel: bool, tokens: Mapping[str, int], *, in_reasoning: bool = False
) -> str | None:
    """The grammar of an answer that may be text and may contain calls, which then are calls of ``tools``.

    None if the opener of calls is no token of its own: a grammar cannot keep it out of the text. Raises as
    ``tool_grammar``.
    """
    rules = Rules(tokens)
    calls = _calls(rules, format, tools, parallel)
    if format.calls is None or not rules.is_token(_opener(format.calls)):
        return None
    text = rules.add("TEXT", ANYTHING)
    answer = f"{text} ({calls} {text})" + ("*" if parallel else "?")
    return rules.text(" ".join(filter(None, (_thought(rules, format.thinking, in_reasoning), answer))))


def after_thought(thinking: Thinking, grammar: str, tokens: Mapping[str, int]) -> str:
    """The grammar of an answer that goes on with a thought of the prompt, ends it, and then fits ``grammar``.

    ``grammar``: llguidance's JSON or Lark text.
    """
    rules = Rules(tokens)
    name = f"{_ANSWER}_after_thought"
    return _around(rules.text(f"{_thought(rules, thinking, in_reasoning=True)} @{name}"), grammar, name)


def calls_or_answer(
    format: Format, tools: Tools, parallel: bool, tokens: Mapping[str, int], grammar: str
) -> str | None:
    """The grammar of an answer that is calls of ``tools``, or else fits ``grammar`` (llguidance's JSON or Lark text).

    None if calls have no opener: as a call may begin like the answer, one grammar cannot tell them apart. Raises as
    ``tool_grammar``.
    """
    if format.calls is None or not _opener(format.calls):
        return None
    rules = Rules(tokens)
    calls = _calls(rules, format, tools, parallel)
    return _around(rules.text(f"{calls} | @{_ANSWER}"), grammar, _ANSWER)


def _around(outer: str, grammar: str, name: str) -> str:
    """``outer``, a Lark grammar that refers to ``grammar`` by ``name``."""
    grammars = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**grammars[0], "name": name}, *grammars[1:]]})


def _calls(rules: Rules, format: Format, tools: Tools, parallel: bool) -> str:
    """A rule for the calls."""
    if format.calls is None:
        raise ValueError("this model has no format for tool calls")
    if not tools:
        raise ValueError("there is no tool to call")
    calls = block(rules, format.calls, tools, _opener(format.calls))
    return rules.add("calls", calls.expression(parallel=parallel))


def _opener(calls: Calls) -> str:
    """The literal before calls; "" if the format writes them without one."""
    return "" if calls.open_at_start else calls.open[0]


def _thought(rules: Rules, thinking: Thinking | None, in_reasoning: bool) -> str:
    """A thought that the answer may begin with; all of one that the prompt began."""
    if thinking is None:
        return ""
    rest = rules.up_to("thought", thinking.close)
    space = rules.add("space", r"/[ \n]{0,4}/")
    return f"{rest} {space}" if in_reasoning else f"({rules.literal(thinking.open)} {rest} {space})?"
