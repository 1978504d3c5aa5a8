"""What clients are to be told, in order; the terminal reply of an attempt ends it. Knows no sequences."""

from __future__ import annotations

from mmserve.messages.reply import FinishReason, TokenReply
from mmserve.messages.request import AbortReason, AbortRequest, EngineInbound, GenerateRequest
from mmserve.router.scheduler.request_registry import RequestRegistry

_FINISH_OF_ABORT: dict[AbortReason, FinishReason] = {
    "client": "abort",
    "media_error": "media_error",
    "media_lost": "media_lost",
    "internal_error": "error",
    "queue_full": "overloaded",
    "queue_timeout": "abort",
}


class OutputBuffer:
    """Collected until they are taken."""

    def __init__(self, attempts: RequestRegistry) -> None:
        self._attempts = attempts
        self._replies: list[tuple[int, TokenReply]] = []

    def take(self) -> list[tuple[int, TokenReply]]:
        """(reply_to, reply) since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

    def token(
        self,
        request: GenerateRequest,
        token_id: int,
        finish: FinishReason | None,
        logprobs: bytes | None,
        num_cached_tokens: int,
    ) -> None:
        """One more token of the request; with ``finish`` its last."""
        if finish is None and logprobs is None and not num_cached_tokens:  # nearly always
            reply = TokenReply(id=request.id, attempt=request.attempt, token_ids=(token_id,))
            self._replies.append((request.reply_to, reply))
            return
        reply = TokenReply(
            id=request.id,
            attempt=request.attempt,
            token_ids=(token_id,),
            logprobs=() if logprobs is None else (logprobs,),
            finish=finish,
            num_cached_tokens=num_cached_tokens,
        )
        self._add(request, reply)

    def abort(self, message: AbortRequest) -> None:
        """Answer the abort, and with it the request."""
        self.end(message, _FINISH_OF_ABORT[message.reason], message.message, message.media_index)

    def end(self, message: EngineInbound, finish: FinishReason, text: str = "", media_index: int | None = None) -> None:
        """No more tokens for the message's id and attempt; why."""
        reply = TokenReply(id=message.id, attempt=message.attempt, finish=finish, message=text, media_index=media_index)
        self._add(message, reply)

    def _add(self, message: EngineInbound, reply: TokenReply) -> None:
        self._replies.append((message.reply_to, reply))
        if reply.finish:
            self._attempts.end(reply.id, reply.attempt)
