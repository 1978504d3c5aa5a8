"""Chat completions as text: the prompt that a request asks for, and the events of a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Template = Callable[[Sequence[Message], bool], str]
"""template(messages, with the beginning of an answer) -> text"""
DONE = b"data: [DONE]\n\n"


class BadRequest(ValueError):
    """The request asks for something that is not served here."""


@dataclass(frozen=True)
class Asked:
    """``begun``: what the answer begins with already."""

    messages: Sequence[Message]
    begun: str
    max_tokens: int

    def prompt(self, template: Template) -> str:
        return template(self.messages, True) + self.begun


def asked(body: dict[str, Any]) -> Asked:
    """What the body asks for. Only streamed greedy answers of a fixed length are served. Raises BadRequest."""
    if not body.get("stream") or not body.get("ignore_eos") or body.get("temperature") != 0:
        raise BadRequest("only stream, ignore_eos and temperature 0 are served")
    if not isinstance(max_tokens := body.get("max_tokens"), int):
        raise BadRequest("max_tokens is missing")
    messages = [{"role": message["role"], "content": _text(message["content"])} for message in body["messages"]]
    begun = messages.pop()["content"] if body.get("continue_final_message") else ""
    return Asked(messages, begun, max_tokens)


def _text(content: str | Sequence[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise BadRequest("only text is served")
    return "".join(part["text"] for part in content)


def text_event(text: str) -> bytes:
    return _event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def last_events(prompt_tokens: int, completion_tokens: int) -> bytes:
    """Reason of the end, usage, and the mark after the last event."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    end = _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    return end + _event({"choices": [], "usage": usage}) + DONE


def error_event(reason: str) -> bytes:
    return _event({"error": {"message": reason}}) + DONE


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"object": "chat.completion.chunk", **content}).encode() + b"\n\n"
