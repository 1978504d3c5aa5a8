"""The formats in which models write reasoning and tool calls: a table, and the choice of a row. Pure.

To add a format, add a row here, its grammar's shape to ``grammar`` and examples to the tests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from mmserve.httpserver.output.parsing.layouts.gemma_calls import GemmaCalls
from mmserve.httpserver.output.parsing.layouts.json_calls import JsonCalls
from mmserve.httpserver.output.parsing.layouts.layout import Layout
from mmserve.httpserver.output.parsing.layouts.named_calls import DeepSeekCalls, MistralCalls
from mmserve.httpserver.output.parsing.layouts.python_calls import PythonCalls
from mmserve.httpserver.output.parsing.layouts.xml_calls import XmlCalls

T = TypeVar("T")
AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Thinking:
    """Reasoning stands between two literals."""

    open: str
    close: str


@dataclass(frozen=True)
class Calls:
    """Tool calls: the literals of which one comes before them, and how they are written after it."""

    open: tuple[str, ...]
    """Each begins calls wherever it stands. It is read before the layout."""
    layout: Layout
    open_at_start: tuple[str, ...] = ()
    """Each begins calls only where a text begins. The layout reads it."""


@dataclass(frozen=True)
class Format:
    """How one model writes. A part that is None does not occur."""

    calls: Calls | None = None
    thinking: Thinking | None = None

    @property
    def literals(self) -> tuple[str, ...]:
        """All literals of the format. Those that are special tokens must reach the machine as markers."""
        found: dict[str, None] = {}
        for part in (self.thinking, self.calls, self.calls and self.calls.layout):
            for field in dataclasses.fields(part) if part else ():
                value = getattr(part, field.name)
                found |= dict.fromkeys(value if isinstance(value, tuple) else [value] if isinstance(value, str) else [])
        return tuple(filter(None, found))

    def markers(self, special: frozenset[str]) -> tuple[str, ...]:
        """Special tokens of the checkpoint that the format's literals contain, for the detokenizer and the machine."""
        return tuple(sorted(name for name in special if name and any(name in literal for literal in self.literals)))

    def with_markers(self, chars: Mapping[str, str]) -> Format:
        """The format with each special token's name replaced by the character that stands for it."""
        if not chars:
            return self
        calls = self.calls and dataclasses.replace(
            _replaced(self.calls, chars), layout=_replaced(self.calls.layout, chars)
        )
        return Format(calls, self.thinking and _replaced(self.thinking, chars))


Part = TypeVar("Part", Thinking, Calls, Layout)


def _replaced(part: Part, chars: Mapping[str, str]) -> Part:
    """A copy of a part of a format. Long names are replaced first: one may contain another."""

    def replaced(text: str) -> str:
        for name in sorted(chars, key=len, reverse=True):
            text = text.replace(name, chars[name])
        return text

    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, str):
            changes[field.name] = replaced(value)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(map(replaced, value))
    return dataclasses.replace(part, **changes)


CALLS: dict[str, Calls] = {
    "hermes": Calls(("<tool_call>",), JsonCalls(close="</tool_call>")),
    "qwen3-coder": Calls(("<tool_call>", "<function="), XmlCalls()),
    "llama3-json": Calls(("<|python_tag|>",), JsonCalls(separator=";", bare_name=False), ("{",)),
    "mistral": Calls(("[TOOL_CALLS]",), MistralCalls()),
    "pythonic": Calls(("<|python_start|>",), PythonCalls(close="<|python_end|>"), ("[",)),
    "lfm2": Calls(("<|tool_call_start|>",), PythonCalls(close="<|tool_call_end|>")),
    "olmo3": Calls(("<function_calls>",), PythonCalls(close="</function_calls>", bracketed=False)),
    "gemma": Calls(("```tool_code\n",), PythonCalls(close="```", bracketed=False)),
    "gemma4": Calls(("<|tool_call>",), GemmaCalls()),
    "deepseek": Calls(("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), DeepSeekCalls()),
    "deepseek-v3.1": Calls(("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"), DeepSeekCalls(fenced=False)),
}
"""Formats of tool calls, by the names that the option takes."""

CALLS_ALIASES = {
    "qwen": "hermes",
    "qwen3": "hermes",
    "qwen2.5": "hermes",
    "llama3": "llama3-json",
    "llama4": "pythonic",
}

THINKING: dict[str, Thinking] = {
    "think": Thinking("<think>", "</think>"),
    "mistral": Thinking("[THINK]", "[/THINK]"),
    "gemma4": Thinking("<|channel>thought", "<channel|>"),
    "seed": Thinking("<seed:think>", "</seed:think>"),
}
"""Formats of reasoning, by the names that the option takes."""

_SIGNS_OF_CALLS: tuple[tuple[str, str], ...] = (
    ("<arg_key>", NONE),  # GLM's calls share a tag with Hermes's, and are not read
    ("<function=", "qwen3-coder"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁calls▁begin｜>", "deepseek"),
    ("<|tool_call>", "gemma4"),
    ("<|tool_call_start|>", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("tool_code", "gemma"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3-json"),
    ('"parameters":', "llama3-json"),
    ("[func_name1(", "pythonic"),
)
"""What the source of a chat template contains, and the format that it belongs to. The first that is found counts."""

_SIGNS_OF_THINKING = (
    ("<think>", "think"),
    ("</think>", "think"),
    ("[THINK]", "mistral"),
    ("<|channel>", "gemma4"),
    ("<seed:think>", "seed"),
)


def calls_format(name: str, template_source: str, tokens: frozenset[str] = frozenset()) -> Calls | None:
    """Format of tool calls by its name, ``none``, or ``auto``: what the chat template shows; None if it shows none.

    ``tokens``: the checkpoint's added tokens, which tell formats with the same tags apart. Raises ValueError for
    unknown names.
    """
    if name == AUTO:
        found = _detected(_SIGNS_OF_CALLS, template_source)
        if found == "llama3-json" and "<|python_start|>" in tokens:  # Llama 4's template shows both
            found = "pythonic"
        if found == "deepseek" and "```json" not in template_source:
            found = "deepseek-v3.1"
        return CALLS.get(found)
    return _named(CALLS, CALLS_ALIASES.get(name, name))


def thinking_format(name: str, template_source: str, tokens: frozenset[str] = frozenset()) -> Thinking | None:
    """Format of reasoning, as ``calls_format``. A checkpoint with a token for it may reason without its template."""
    if name == AUTO:
        found = _detected(_SIGNS_OF_THINKING, template_source)
        found = found or next((key for key, row in THINKING.items() if {row.open, row.close} <= tokens), "")
        return THINKING[found] if found else None
    return _named(THINKING, name)


def choose(calls: str, thinking: str, template_source: str, tokens: frozenset[str] = frozenset()) -> Format:
    """The format that the options ask for, each ``auto``, ``none`` or a name. Raises ValueError for unknown names."""
    return Format(calls_format(calls, template_source, tokens), thinking_format(thinking, template_source, tokens))


def _detected(signs: tuple[tuple[str, str], ...], template_source: str) -> str:
    return next((name for sign, name in signs if sign in template_source), "")


def _named(table: Mapping[str, T], name: str) -> T | None:
    if name == NONE:
        return None
    if name not in table:
        raise ValueError(f"{name!r} is none of {', '.join([AUTO, NONE, *table])}")
    return table[name]


def starts_in_reasoning(thinking: Thinking | None, prompt: str, continued: str = "") -> bool:
    """Whether the rendered prompt ends inside a thought, which the model is to continue.

    ``continued``: the end of the prompt that is the beginning of the answer (the message that the caller wants
    continued). Before it, only a marker at the very end was written by the template for this answer: one further up
    belongs to an earlier turn, or is something that a user wrote.
    """
    if thinking is None:
        return False
    opened, closed = continued.rfind(thinking.open), continued.rfind(thinking.close)
    if opened != closed:  # there is one of them
        return opened > closed
    return prompt.rstrip().removesuffix(continued.rstrip()).rstrip().endswith(thinking.open)
