"""How the served model writes reasoning and tool calls: what a request needs to read and to require them.

One per worker. A conversation gives each of its answers a Reading, and perhaps a grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from mmserve.checkpoint.files import read_json
from mmserve.httpserver.conversation import Conversation, PromptInput, TextPart, Tool
from mmserve.httpserver.output.parsing.formats import AUTO, Format, choose, starts_in_reasoning
from mmserve.httpserver.output.parsing.grammar.tool_grammar import (
    after_thought,
    calls_or_answer,
    optional_tool_grammar,
    tool_grammar,
)
from mmserve.httpserver.output.parsing.machine import OutputMachine
from mmserve.httpserver.output.parsing.response_template import declared_format
from mmserve.httpserver.output.vocabulary import Marker, Vocabulary
from mmserve.runtime.errors import InvalidRequest, StartupError

_SCHEMA_NBYTES = 12
"""Memory of a decoded schema for each character of its text, roughly."""


@dataclass(frozen=True)
class Reading:
    """How the answers to one prompt are read.

    ``tools``: schemas by name; None if calls are text. ``one_call``: the answer ends with its first call.
    """

    format: Format
    markers: Mapping[int, Marker]
    tools: Mapping[str, Mapping[str, Any]] | None
    in_reasoning: bool
    one_call: bool

    def machine(self) -> OutputMachine:
        """A machine for one answer."""
        names = tuple(sorted({marker.name for marker in self.markers.values()}))
        return OutputMachine(self.format, self.tools, self.in_reasoning, names)


class AnswerFormat:
    """``format``: of the model. ``vocabulary``: tells which of its literals are special tokens."""

    def __init__(self, format: Format, vocabulary: Vocabulary) -> None:
        self.format = format
        self._markers = vocabulary.markers(format.markers(vocabulary.special_names))
        self._tokens = vocabulary.added_tokens

    @classmethod
    def of_checkpoint(
        cls, checkpoint: Path, template_source: str, vocabulary: Vocabulary, calls: str, thinking: str
    ) -> AnswerFormat:
        """``calls`` and ``thinking``: the options, each a name of ``formats``, ``auto`` or ``none``.

        Raises StartupError for unknown names.
        """
        try:
            found = choose(calls, thinking, template_source, frozenset(vocabulary.added_tokens))
        except ValueError as error:
            raise StartupError(f"--tool-call-parser or --reasoning-parser: {error}") from None
        config = read_json(checkpoint / "tokenizer_config.json") or {}
        if (declared := declared_format(config.get("response_template"))) is not None:
            found = Format(
                declared.calls if calls == AUTO else found.calls,
                declared.thinking if thinking == AUTO else found.thinking,
            )
        return cls(found, vocabulary)

    def grammar(self, conversation: Conversation, *, in_reasoning: bool = False) -> tuple[str, str]:
        """The grammar that the request's tools ask for, and the field that does. Empty if they need none.

        Raises InvalidRequest if the model cannot be made to call these tools.
        """
        choice, tools = conversation.tool_choice, conversation.tools
        if not tools or choice.mode == "none":
            return "", ""
        if self.format.calls is None:
            raise InvalidRequest(
                "how this model writes tool calls is not known; start the server with --tool-call-parser NAME",
                param="tools",
            )
        callable_tools = _callable(conversation)
        param = "tool_choice" if choice.mode == "required" else "tools"
        parallel = conversation.parallel_tool_calls
        try:
            if choice.mode == "required":
                schemas = _schemas(callable_tools)
                return tool_grammar(self.format, schemas, parallel, self._tokens, in_reasoning=in_reasoning), param
            if any(tool.strict for tool in callable_tools):
                schemas = _schemas(callable_tools)
                found = optional_tool_grammar(self.format, schemas, parallel, self._tokens, in_reasoning=in_reasoning)
                return found or "", param
        except ValueError as error:
            raise InvalidRequest(f"{param}: {error}", param=param) from None
        return "", ""

    def calls_or_answer(self, conversation: Conversation, grammar: str) -> str:
        """``grammar`` for an answer that may call the request's tools in its place; unchanged if it may not, or if the
        model's calls cannot be told from answers. Raises InvalidRequest if the model cannot be made to call the tools.
        """
        if conversation.tool_choice.mode != "auto" or not conversation.tools:
            return grammar
        schemas, parallel = _schemas(_callable(conversation)), conversation.parallel_tool_calls
        try:
            return calls_or_answer(self.format, schemas, parallel, self._tokens, grammar) or grammar
        except ValueError as error:
            raise InvalidRequest(f"tools: {error}", param="tools") from None

    def after_thought(self, grammar: str) -> str:
        """``grammar`` for an answer that begins inside a thought, which it ends first."""
        thinking = self.format.thinking
        return grammar if thinking is None else after_thought(thinking, grammar, self._tokens)

    def reading(self, prompt: PromptInput, tail: str) -> Reading | None:
        """How the answers to ``prompt`` are read; None if they are text alone. ``tail``: of the prompt."""
        if not isinstance(prompt, Conversation):
            return None
        reads_calls = bool(prompt.tools) and prompt.tool_choice.mode != "none"
        if not reads_calls and self.format.thinking is None:
            return None
        return Reading(
            self.format,
            self._markers,
            _schemas(prompt.tools) if reads_calls else None,
            starts_in_reasoning(self.format.thinking, tail, _continued(prompt)),
            one_call=not prompt.parallel_tool_calls,
        )


def reading_nbytes(conversation: PromptInput) -> int:
    """Memory that the tools of a request take while its answers are read."""
    tools = conversation.tools if isinstance(conversation, Conversation) else ()
    return sum(_SCHEMA_NBYTES * len(tool.parameters) for tool in tools)


def _callable(conversation: Conversation) -> list[Tool]:
    names = conversation.tool_choice.names
    return [tool for tool in conversation.tools if not names or tool.name in names]


def _schemas(tools: list[Tool] | tuple[Tool, ...]) -> dict[str, Mapping[str, Any]]:
    try:
        return {tool.name: msgspec.json.decode(tool.parameters, type=dict) if tool.parameters else {} for tool in tools}
    except RecursionError:
        raise InvalidRequest("the schema of a tool is nested too deeply", param="tools") from None


def _continued(conversation: Conversation) -> str:
    """The text that the answer continues."""
    if not conversation.continue_final_message:
        return ""
    texts = [part.text for part in conversation.messages[-1].content if isinstance(part, TextPart)]
    return texts[-1] if texts else ""
