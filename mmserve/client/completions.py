"""Chat completions of any OpenAI-style server, as a stream of typed events."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

_CONNECT_TIMEOUT_S = 10.0


class ServerError(Exception):
    """The server cannot be reached, has refused the request, or has broken off its answer."""


@dataclass(frozen=True)
class Text:
    """The next piece of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """The next piece of what a model writes before its answer."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The answer is complete. ``reason``: stop, length or another ``finish_reason`` of the protocol."""

    reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)


Event = Text | Reasoning | Finished


class CompletionsClient:
    """``url``: of the server, with or without ``/v1``. A context manager."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        base = url.rstrip("/").removesuffix("/v1")
        timeout = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self.url = base
        self._http = httpx2.Client(base_url=base, headers=headers, timeout=timeout)

    def __enter__(self) -> CompletionsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names of the served models. Raises ServerError."""
        try:
            response = self._http.get("/v1/models")
            if response.status_code != 200:
                raise ServerError(refusal(response.status_code, response.content))
            return [str(model["id"]) for model in response.json()["data"]]
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        except (ValueError, LookupError, TypeError):
            raise ServerError(f"{self.url}/v1/models does not answer as an OpenAI-style server does") from None

    def stream(self, body: Mapping[str, Any]) -> Generator[Event, None, None]:
        """Send a body of ``/v1/chat/completions`` and yield the answer, Finished last. Closing the iterator ends the
        request. Raises ServerError, also if the stream ends without a ``finish_reason``."""
        whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=whole) as response:
                if response.status_code != 200:
                    raise ServerError(refusal(response.status_code, response.read()))
                yield from read_events(response.iter_lines())
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx2.HTTPError) -> ServerError:
        return ServerError(f"{self.url}: {error or type(error).__name__}")


def read_events(lines: Iterator[str]) -> Iterator[Event]:
    """Read server-sent events of a chat completion. Raises ServerError for an error among them, and at a cut."""
    reader = EventReader()
    for line in lines:
        yield from reader.read(line)
        if reader.is_done:
            break
    yield reader.finished()


class EventReader:
    """Reads the lines of one chat completion. ``is_done``: its last line has been read."""

    def __init__(self) -> None:
        self.is_done = False
        self._reason = ""
        self._usage: Mapping[str, Any] = {}

    def read(self, line: str) -> Iterator[Text | Reasoning]:
        """The pieces in one line. Raises ServerError."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self.is_done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise ServerError(f"the stream holds what is no JSON: {data[:80]!r}") from None
        if error := chunk.get("error"):
            raise ServerError(_message(error))
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            # vLLM and others name it "reasoning", DeepSeek "reasoning_content".
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                yield Reasoning(thought)
            if text := delta.get("content") or delta.get("refusal"):
                yield Text(text)
            self._reason = choice.get("finish_reason") or self._reason

    def finished(self) -> Finished:
        """The end of the answer. Raises ServerError if it was not complete."""
        if not self._reason:
            raise ServerError("the connection ended in the middle of the answer")
        return Finished(self._reason, self._usage)


def refusal(status: int, content: bytes) -> str:
    """What a server says in a response that is an error, in one line."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    error = found.get("error") if isinstance(found, dict) else None
    return f"HTTP {status}: {_message(error) if error else content[:200].decode(errors='replace')}"


def _message(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    message, param = str(error.get("message")), str(error.get("param") or "")
    return message if param in message else f"{message} (field {param})"
