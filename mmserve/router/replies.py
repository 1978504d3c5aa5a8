"""What clients are to be told, in order; the terminal reply of an attempt ends it. Knows no sequences."""

from __future__ import annotations

from mmserve.messages.reply import FinishReason, TokenReply
from mmserve.messages.request import AbortReason, AbortRequest, EngineInbound
from mmserve.router.attempts import Attempts

_FINISH_OF_ABORT: dict[AbortReason, FinishReason] = {
    "client": "abort",
    "media_error": "media_error",
    "media_lost": "media_lost",
    "internal_error": "error",
    "queue_full": "overloaded",
    "queue_timeout": "abort",
}


class Replies:
    """Collected until they are taken."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._replies: list[tuple[int, TokenReply]] = []

    def take(self) -> list[tuple[int, TokenReply]]:
        """(reply_to, reply) since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

    def add_abort(self, message: AbortRequest) -> None:
        """Answer the abort, and with it the request."""
        finish = _FINISH_OF_ABORT[message.reason]
        self.add(message, finish, text=message.message, media_index=message.media_index)

    def add(
        self,
        message: EngineInbound,
        finish: FinishReason | None,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[bytes, ...] = (),
        text: str = "",
        media_index: int | None = None,
        num_cached_tokens: int = 0,
    ) -> None:
        """Answer the message's id and attempt, with ``finish`` for the last time."""
        reply = TokenReply(
            id=message.id,
            attempt=message.attempt,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=finish,
            message=text,
            media_index=media_index,
            num_cached_tokens=num_cached_tokens,
        )
        self._replies.append((message.reply_to, reply))
        if finish:
            self._attempts.end(message.id, message.attempt)
