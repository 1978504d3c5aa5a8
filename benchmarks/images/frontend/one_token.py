"""Requests for one token in the form of each protocol: a text, or one picture and a short text."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable
from typing import Any

from benchmarks.images.frontend.bodies import Body, behind, in_text, padded, text
from mmserve.cli.bench.plan import jpeg

QUESTION = "What is it?"
Part = dict[str, Any]


def _chat(model: str, content: str | list[Part]) -> Part:
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def _completion(model: str, content: str | list[Part]) -> Part:
    return {"model": model, "prompt": content, "max_tokens": 1, "temperature": 0}


def _response(model: str, content: str | list[Part]) -> Part:
    message = {"role": "user", "content": content}
    return {"model": model, "input": [message], "max_output_tokens": 1, "temperature": 0, "store": False}


def _chat_picture(data: str) -> list[Part]:
    url = {"url": f"data:image/jpeg;base64,{data}"}
    return [{"type": "image_url", "image_url": url}, {"type": "text", "text": QUESTION}]


def _message_picture(data: str) -> list[Part]:
    source = {"type": "base64", "media_type": "image/jpeg", "data": data}
    return [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]


def _response_picture(data: str) -> list[Part]:
    url = f"data:image/jpeg;base64,{data}"
    return [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": QUESTION}]


PROTOCOLS: dict[str, tuple[str, Callable[[str, str | list[Part]], Part], Callable[[str], list[Part]] | None]] = {
    "chat": ("/v1/chat/completions", _chat, _chat_picture),
    "completions": ("/v1/completions", _completion, None),
    "messages": ("/v1/messages", _chat, _message_picture),
    "responses": ("/v1/responses", _response, _response_picture),
}
"""Path, fields of a request with this content, and a picture as content (None: the protocol takes none)."""


def served(url: str) -> list[str]:
    """The protocols that a server offers."""
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as answer:
        paths = json.load(answer)["paths"]
    return [name for name, (path, _, _) in PROTOCOLS.items() if path in paths]


def text_bodies(count: int, protocol: str, model: str, chars: int) -> list[Body]:
    path, fields, _ = PROTOCOLS[protocol]
    return [Body(path, fields(model, text(chars)), in_text) for _ in range(count)]


def picture_bodies(count: int, protocol: str, model: str, nbytes: int) -> list[Body]:
    """Empty for a protocol without pictures."""
    path, fields, picture = PROTOCOLS[protocol]
    photo = jpeg(random.Random(0), (320, 240))
    if picture is None:
        return []
    return [Body(path, fields(model, picture(padded(photo, nbytes))), behind(photo)) for _ in range(count)]
