"""LLM: a model in a server of this program's own, for code without an event loop, and for notebooks that have one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, overload

from mmserve.client.loop_thread import LoopThread
from mmserve.offline.answer import Answer
from mmserve.offline.chats import Chats
from mmserve.offline.conversation import Conversation, Message, Pictures
from mmserve.offline.server import OfflineServer, OnLine
from mmserve.offline.stream import Stream


class LLM:
    """``model``: packaged name, checkpoint directory, or hub id. ``options``: those of ``mmserve serve``, named with
    underscores. ``on_log`` gets each line that the server logs, in another thread. Raises StartupError.

    The processes end with ``close``, with the block of ``with``, with this object and with the program. Any thread may
    use it.
    """

    def __init__(self, model: str = "llava", *, on_log: OnLine = lambda line: None, **options: Any) -> None:
        self._server = OfflineServer(model, options, on_log)
        own = self._server.start()
        # The caller's thread may have an event loop that runs, as in a notebook.
        self._thread = LoopThread("mmserve LLM")
        try:
            self._chats = self._thread.run(Chats.connect(own, self._server.max_in_flight))
        except BaseException:  # nobody would close an LLM that could not be made
            self._thread.close()
            self._server.stop()
            raise
        self._finalizer = weakref.finalize(self, _close, self._thread, self._chats, self._server)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the requests that are under way, and stop all processes."""
        self._finalizer()

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> Answer: ...
    @overload
    def chat(
        self,
        messages: Sequence[str] | Sequence[Sequence[Message]],
        *,
        images: Sequence[Pictures] | None = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> list[Answer]: ...
    def chat(
        self,
        messages: Any,
        *,
        images: Any = None,
        schema: Mapping[str, Any] | None = None,
        progress: bool = True,
        **fields: Any,
    ) -> Answer | list[Answer]:
        """Answer a conversation, or each of a list of them. See ``AsyncLLM.chat``. Ctrl-C ends the requests alone."""
        self._server.check_usable()
        return self._thread.run(self._chats.chat(messages, images, schema, progress, fields))

    def stream(
        self,
        messages: Conversation,
        *,
        images: Pictures = None,
        schema: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Stream:
        """Answer one conversation piece by piece: an iterator over them. See ``AsyncLLM.stream``."""
        self._server.check_usable()
        return Stream(self._thread, self._chats.stream(messages, images, schema, fields))


def _close(thread: LoopThread, chats: Chats, server: OfflineServer) -> None:
    """In a copy of the process, made by a fork, there is no such thread, and the server is the original's."""
    if server.is_mine:
        thread.close(chats.aclose)
        server.stop()
