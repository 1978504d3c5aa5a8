"""Steps a pipeline while requests run, and reports the tokens of every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """``number``: its name, unique among the requests of one engine."""

    number: int
    ids: Sequence[int]
    max_tokens: int


@dataclass(frozen=True)
class News:
    """What one step brought for one request."""

    number: int
    prompt_tokens: int
    tokens: Sequence[int] = ()
    has_ended: bool = False
    error: str = ""


class Output(Protocol):
    generated_ids: Sequence[int]


class Handle(Protocol):
    """One request in the pipeline, as openvino_genai gives it."""

    def can_read(self) -> bool: ...

    def read(self) -> Mapping[int, Output]:
        """The tokens since the last call, by sequence."""
        ...


class Pipeline(Protocol):
    def add(self, request: Request) -> Handle: ...

    def step(self) -> None: ...

    def is_ignored(self, handle: Handle) -> bool:
        """True if the request does not fit into the KV cache, so that it will get no more tokens."""
        ...


class Inbox(Protocol):
    """Where requests come from."""

    def poll(self) -> bool:
        """True if ``recv`` would not wait."""
        ...

    def recv(self) -> Request | None:
        """The next request; None: there will be no more, and those that run are no longer wanted."""
        ...


@dataclass
class _Running:
    request: Request
    handle: Handle
    num_tokens: int = 0


@dataclass
class Engine:
    """``deliver`` gets the news of each step."""

    pipeline: Pipeline
    inbox: Inbox
    deliver: Callable[[Sequence[News]], object]
    _running: dict[int, _Running] = field(default_factory=dict)

    def run(self) -> None:
        while self._admit():
            self.pipeline.step()
            if news := [found for running in list(self._running.values()) if (found := self._news(running))]:
                self.deliver(news)

    def _admit(self) -> bool:
        """Add what has come; wait for a request if none runs. False if there will be no more."""
        while not self._running or self.inbox.poll():
            request = self.inbox.recv()
            if request is None:
                return False
            self._running[request.number] = _Running(request, self.pipeline.add(request))
        return True

    def _news(self, running: _Running) -> News | None:
        request, handle = running.request, running.handle
        outputs = handle.read().values() if handle.can_read() else ()
        tokens = [token for output in outputs for token in output.generated_ids]
        running.num_tokens += len(tokens)
        error = "the KV cache has no room for it" if self.pipeline.is_ignored(handle) else ""
        has_ended = running.num_tokens >= request.max_tokens or bool(error)
        if has_ended:
            del self._running[request.number]
        news = News(request.number, len(request.ids), tokens, has_ended, error)
        return news if tokens or has_ended else None
