"""Makes the reports of one server from the requests that its router receives and the replies that it sends. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Protocol

from mmserve.cluster.scale.reports import Load, Report
from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import EngineInbound, GenerateRequest, WorkerDied
from mmserve.router.kv_cache.prefix_cache import Node
from mmserve.router.reports.held_beginnings import HeldBeginnings
from mmserve.router.reports.held_pictures import HeldPictures

_AVERAGE_WEIGHT = 0.1
_FADES_TO = 0.95
"""At each report: how long requests waited for room says nothing once none comes."""
_TOKEN_NBYTES = 8
_COMPUTED = ("stop", "length")


class _Average:
    def __init__(self) -> None:
        self.value = 0.0

    def add(self, sample: float) -> None:
        self.value += (sample - self.value) * (_AVERAGE_WEIGHT if self.value else 1.0)


class PrefixCache(Protocol):
    """Implemented by kv_cache.manager.KvCacheManager."""

    block_tokens: int

    def cached_blocks(self, tokens: array[int], salt: str) -> list[Node]: ...


class Reporter:
    """``slots``: sequences computed at once; ``beginnings`` listens to ``kv``; ``facts``: see Report."""

    def __init__(
        self,
        slots: int,
        pictures: HeldPictures,
        beginnings: HeldBeginnings,
        kv: PrefixCache,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.pictures = pictures
        self._slots = slots
        self._beginnings = beginnings
        self._kv = kv
        self._facts = dict(facts or {})
        self._live: dict[str, GenerateRequest] = {}
        self._unanswered: dict[str, int] = {}
        """Pictures to encode, by id of a request that has no token yet."""
        self._died: dict[int, WorkerDied] = {}
        """HTTP worker -> its last death."""
        self._has_answered = False
        self._first: set[str] = set()
        """Live requests that came before one was answered. They pay for what a server does once, so their costs are not
        counted. A server whose costs are unknown reports none, and so gets a request soon."""
        self._request_s, self._encode_s = _Average(), _Average()
        self._prefill_s, self._prefilled = _Average(), _Average()
        """Seconds and tokens of a request: long prompts count for more, as they should."""
        self._arena_s = _Average()

    def received(self, messages: Iterable[EngineInbound]) -> None:
        """The router has received these."""
        for message in messages:
            if isinstance(message, WorkerDied):
                self._worker_died(message)
            elif isinstance(message, GenerateRequest) and not (message.look_up or self._is_orphan(message)):
                self._live[message.id] = message
                if not self._has_answered:
                    self._first.add(message.id)
                self._unanswered[message.id] = _num_to_encode(message)
                self.pictures.named(message.pictures)
                if message.spans and not message.attempt:
                    self._arena_s.add(message.arena_s)

    def replied(self, replies: Iterable[tuple[int, TokenReply | SequenceStages]]) -> None:
        """The router sends these. With the first token of a request its prompt is held; with its end if it has no
        token."""
        for _, reply in replies:
            if not isinstance(reply, TokenReply):
                continue
            if (request := self._live.get(reply.id)) is None or request.attempt != reply.attempt:
                continue
            if (reply.token_ids or reply.finish in _COMPUTED) and self._unanswered.pop(reply.id, None) is not None:
                self._hold(request)
            if reply.finish is not None:
                self._ended(request, reply)

    def report(self, num_waiting: int, full_at: int, *, snapshot: bool = False) -> Report:
        """The next report. Of the scheduler: sequences that wait, and those that run if they leave no room for others,
        otherwise 0. ``snapshot``: with all that is held."""
        request_s = self._request_s.value / self._slots
        self._arena_s.value *= _FADES_TO
        load = Load(
            wait_s=num_waiting * self._request_s.value / full_at if full_at else 0.0,
            encoder_wait_s=self._arena_s.value + sum(self._unanswered.values()) * self._encode_s.value,
            in_flight=len(self._live),
            slots=self._slots,
            request_s=request_s,
            encode_s=self._encode_s.value,
            prefill_s=self._prefill_s.value / (self._prefilled.value or 1.0),
        )
        held = self.pictures.announced, self._beginnings.announced
        holdings = tuple(each.report(snapshot=snapshot) for each in held)
        return Report(load, holdings, self._facts if snapshot else {})

    def _worker_died(self, died: WorkerDied) -> None:
        """Its requests get no reply, so nothing else would end them here."""
        self._died[died.worker] = died
        for id in [id for id, request in self._live.items() if died.concerns(request)]:
            self._forget(id)

    def _is_orphan(self, request: GenerateRequest) -> bool:
        """True for a request that was on its way when its HTTP worker died. The scheduler ignores it."""
        died = self._died.get(request.reply_to)
        return died is not None and died.concerns(request)

    def _hold(self, request: GenerateRequest) -> None:
        if beginnings := request.beginnings:
            tokens = array("q", request.prompt_ids[: beginnings[-1][1] * _TOKEN_NBYTES])
            nodes = self._kv.cached_blocks(tokens, request.cache_salt)
            self._beginnings.hold(beginnings, nodes, self._kv.block_tokens)

    def _ended(self, request: GenerateRequest, reply: TokenReply) -> None:
        is_first, times = request.id in self._first, reply.stage_times
        self._forget(request.id)
        if reply.finish not in _COMPUTED or not times:
            return
        self._has_answered = True
        if is_first:
            return
        self._request_s.add(times.get("prefill", 0.0) + times.get("decode", 0.0))
        num_pictures = _num_to_encode(request)
        if num_pictures and (encode_s := times.get("image_decode", 0.0) + times.get("encode", 0.0)):
            self._encode_s.add(encode_s / num_pictures)
        num_computed = len(request.prompt_ids) // _TOKEN_NBYTES - reply.num_cached_tokens
        if num_computed > 0 and (prefill_s := times.get("prefill", 0.0)):
            self._prefill_s.add(prefill_s)
            self._prefilled.add(num_computed)

    def _forget(self, id: str) -> None:
        del self._live[id]
        self._unanswered.pop(id, None)
        self._first.discard(id)


def _num_to_encode(request: GenerateRequest) -> int:
    """Of its pictures, those whose embeddings were not in the arena when it was made."""
    return len({span.item_id for span in request.spans if span.data is not None})
