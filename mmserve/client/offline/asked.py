"""What LLM and AsyncLLM have in common: how they are made and asked. The first blocks, the second is awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

from mmserve.client.offline.conversation import Conversation, Message, Pictures
from mmserve.client.offline.server import OfflineServer, OnLine

One = TypeVar("One", covariant=True)
Many = TypeVar("Many", covariant=True)
Pieces = TypeVar("Pieces", covariant=True)


class Question(NamedTuple):
    """Arguments of ``chat`` and ``stream``; ``messages`` and ``images`` are of one conversation or of a list."""

    messages: Any
    images: Any
    schema: Mapping[str, Any] | None
    fields: Mapping[str, Any]


class Asked(ABC, Generic[One, Many, Pieces]):
    """A model in a server of this program's own.

    ``model``: packaged name, checkpoint directory, or hub id. ``options``: those of ``mmserve serve``, named with
    underscores. ``on_log`` gets each line that the server logs, in another thread. Raises OptionError.
    """

    def __init__(self, model: str = "llava", *, on_log: OnLine = lambda line: None, **options: Any) -> None:
        self._server = OfflineServer(model, options, on_log)
        self._made()

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> One: ...
    @overload
    def chat(
        self,
        messages: Sequence[str] | Sequence[Sequence[Message]],
        *,
        images: Sequence[Pictures] | None = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> Many: ...
    def chat(
        self,
        messages: Any,
        *,
        images: Any = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> One | Many:
        """Answer a conversation, or each of a list of them, at once, in their order.

        ``images``: pictures for the last message of the user, or those of each conversation. ``schema``: JSON schema of
        the answer. ``fields``: of chat completions, as temperature, max_tokens, seed. ``progress``: show a bar for a
        list. Raises ServerError if the server refuses the one conversation, PictureError for a bad picture of it; in a
        list, the ``error`` of the answer says why.
        """
        return self._chat(Question(messages, images, schema, fields), progress=progress)

    def stream(
        self,
        messages: Conversation,
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Pieces:
        """Answer one conversation piece by piece: an iterator over them. Arguments as those of ``chat``; n must be
        1."""
        return self._stream(Question(messages, images, schema, fields))

    @abstractmethod
    def _made(self) -> None:
        """Called once, when the server is described and not started."""

    @abstractmethod
    def _chat(self, question: Question, *, progress: bool) -> One | Many: ...

    @abstractmethod
    def _stream(self, question: Question) -> Pieces: ...
