"""What a request asks the model: a conversation for its chat template, or a prompt that is already written."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """The place of ``GenerateCall.media[index]`` in the conversation."""

    index: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn. ``arguments``: JSON text, as the client gave it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """``role``: system, user, assistant or tool. ``tool_call_id``: the call whose result a message of a tool is."""

    role: str
    content: tuple[TextPart | MediaPart, ...]
    name: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. ``parameters``: the JSON schema of its arguments as text; empty: none given.

    ``strict``: the client asks that the arguments of every call obey the schema.
    """

    name: str
    description: str = ""
    parameters: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``required``: the answer must be a call. ``names``: the functions that may be called; empty: all."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """Messages for the model's chat template.

    ``template_kwargs``: a JSON object with further variables of the template, e.g. ``enable_thinking``.
    ``continue_final_message``: the answer continues the last message, which is the assistant's.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: str = "{}"
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True)
class WrittenPrompt:
    """A prompt that is used as it is: a text, or int64 token ids. ``param``: the field that it came from.

    ``add_special_tokens``: a text begins with the tokenizer's special tokens, as its bos token.
    """

    content: str | array[int]
    param: str = "prompt"
    add_special_tokens: bool = True


PromptInput = Conversation | WrittenPrompt

_PART_NBYTES, _MESSAGE_NBYTES, _CALL_NBYTES, _TOOL_NBYTES = 80, 240, 120, 160
"""Objects of a part, a message, a call and a tool, without their texts."""


def num_parts(prompt: PromptInput) -> int:
    """Parts of a conversation's messages; 0 for a written prompt."""
    return sum(len(message.content) for message in prompt.messages) if isinstance(prompt, Conversation) else 0


def num_chars(prompt: PromptInput) -> int:
    """Length of the text that building the prompt works on, roughly. Token ids count as characters."""
    if isinstance(prompt, WrittenPrompt):
        return len(prompt.content)
    return sum(map(len, texts_of(prompt)))


def nbytes(prompt: PromptInput) -> int:
    """Memory of the prompt's objects, with texts in the width that they are stored in."""
    if isinstance(prompt, WrittenPrompt):
        return sys.getsizeof(prompt.content)
    return (
        _MESSAGE_NBYTES * len(prompt.messages)
        + _PART_NBYTES * num_parts(prompt)
        + _CALL_NBYTES * sum(len(message.tool_calls) for message in prompt.messages)
        + _TOOL_NBYTES * len(prompt.tools)
        + sum(map(sys.getsizeof, texts_of(prompt)))
    )


def texts_of(conversation: Conversation) -> Iterator[str]:
    """Every text of the client that may reach the prompt."""
    yield conversation.template_kwargs
    for message in conversation.messages:
        yield from (part.text for part in message.content if isinstance(part, TextPart))
        yield from (message.name, message.reasoning, message.tool_call_id)
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in conversation.tools:
        yield from (tool.name, tool.description, tool.parameters)
