"""Makes the reports of one server from the requests that its router receives and the replies that it sends. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mmserve.cluster.scale.reports import Load, Report
from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import EngineInbound, GenerateRequest, WorkerDied
from mmserve.router.reports.held_names import HeldNames

_SNAPSHOT_EVERY = 20
"""Reports: a front that has missed one, or has just come, waits this long."""
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


class Reporter:
    """``slots``: sequences computed at once; ``arena_nbytes`` and ``kv_tokens``: sizes of the caches; ``epoch``:
    another one at each start."""

    def __init__(self, slots: int, arena_nbytes: int, kv_tokens: int, epoch: int) -> None:
        self._slots = slots
        self._pictures = HeldNames("pictures", arena_nbytes, epoch)
        self._blocks = HeldNames("blocks", kv_tokens, epoch)
        self._live: dict[str, GenerateRequest] = {}
        self._unanswered: dict[str, int] = {}
        """Pictures to encode, by id of a request that has no token yet."""
        self._died: dict[int, WorkerDied] = {}
        """HTTP worker -> its last death."""
        self._num_reports = 0
        self._request_s, self._encode_s, self._prefill_s = _Average(), _Average(), _Average()
        self._arena_s = _Average()

    def received(self, messages: Iterable[EngineInbound]) -> None:
        """The router has received these."""
        for message in messages:
            if isinstance(message, WorkerDied):
                self._worker_died(message)
            elif isinstance(message, GenerateRequest) and not (message.look_up or self._is_orphan(message)):
                self._live[message.id] = message
                self._unanswered[message.id] = self._pictures.missing(message.pictures)
                if message.spans and not message.attempt:
                    self._arena_s.add(message.arena_s)

    def replied(self, replies: Iterable[tuple[int, TokenReply | SequenceStages]]) -> None:
        """The router sends these. With the first token of a request its prompt is held, and its pictures are; with its
        end if it has no token."""
        for _, reply in replies:
            if not isinstance(reply, TokenReply):
                continue
            if (request := self._live.get(reply.id)) is None or request.attempt != reply.attempt:
                continue
            if (reply.token_ids or reply.finish in _COMPUTED) and self._unanswered.pop(reply.id, None) is not None:
                self._hold(request)
            if reply.finish is not None:
                self._ended(request, reply)

    def report(self, num_waiting: int, num_running: int) -> Report:
        """The next report. Of the scheduler: sequences that wait, and that run."""
        snapshot = self._num_reports % _SNAPSHOT_EVERY == 0
        self._num_reports += 1
        request_s = self._request_s.value / self._slots
        self._arena_s.value *= _FADES_TO
        load = Load(
            wait_s=num_waiting * request_s if num_running >= self._slots else 0.0,
            encoder_wait_s=self._arena_s.value + sum(self._unanswered.values()) * self._encode_s.value,
            in_flight=len(self._live),
            slots=self._slots,
            request_s=request_s,
            encode_s=self._encode_s.value,
            prefill_s=self._prefill_s.value,
        )
        changes = (self._pictures.changes(snapshot=snapshot), self._blocks.changes(snapshot=snapshot))
        return Report(load, tuple(each for each in changes if each is not None))

    def _worker_died(self, died: WorkerDied) -> None:
        """Its requests get no reply, so nothing else would end them here."""
        self._died[died.worker] = died
        for id in [id for id, request in self._live.items() if died.concerns(request)]:
            del self._live[id]
            self._unanswered.pop(id, None)

    def _is_orphan(self, request: GenerateRequest) -> bool:
        """True for a request that was on its way when its HTTP worker died. The scheduler ignores it."""
        died = self._died.get(request.reply_to)
        return died is not None and died.concerns(request)

    def _hold(self, request: GenerateRequest) -> None:
        tokens = len(request.prompt_ids) // _TOKEN_NBYTES
        extents = {span.item_id: span.embed.nbytes for span in request.spans}
        pictures: tuple[int | str, ...] = request.pictures or tuple(str(item) for item in extents)
        self._pictures.use(pictures, sum(extents.values()) / max(1, len(pictures)))
        # Backwards: the end of a prompt is forgotten first, as in the prefix cache.
        blocks: tuple[int | str, ...] = request.blocks[::-1] or (request.id,)
        self._blocks.use(blocks, tokens / len(blocks))

    def _ended(self, request: GenerateRequest, reply: TokenReply) -> None:
        del self._live[request.id]
        self._unanswered.pop(request.id, None)
        times = reply.stage_times
        if reply.finish not in _COMPUTED or not times:
            return
        self._request_s.add(times.get("prefill", 0.0) + times.get("decode", 0.0))
        num_pictures = len({span.item_id for span in request.spans if span.data is not None})
        if num_pictures and (encode_s := times.get("image_decode", 0.0) + times.get("encode", 0.0)):
            self._encode_s.add(encode_s / num_pictures)
        num_computed = len(request.prompt_ids) // _TOKEN_NBYTES - reply.num_cached_tokens
        if num_computed > 0 and (prefill_s := times.get("prefill", 0.0)):
            self._prefill_s.add(prefill_s / num_computed)
