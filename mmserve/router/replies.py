"""What clients are to be told, in order; the terminal reply of an attempt ends it. Knows no sequences."""

from __future__ import annotations

from mmserve.messages.reply import FinishReason, TokenReply
from mmserve.messages.request import EngineInbound
from mmserve.router.attempts import Attempts


class Replies:
    """Collected until they are taken."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._replies: list[tuple[int, TokenReply]] = []

    def take(self) -> list[tuple[int, TokenReply]]:
        """(reply_to, reply) since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

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
