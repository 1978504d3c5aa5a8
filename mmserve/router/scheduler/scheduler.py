"""Decides what each step computes, and turns the results into replies: continuous batching over all sequences.

The caller calls receive(message) any number of times, then schedule() -> plan and apply(plan, result), then
take_replies(). Several plans may be in flight (made, but not applied); they are computed and applied in order.
Pure: the clock is passed in, no I/O.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import (
    AbortRequest,
    AskStages,
    EncodeRequest,
    EngineInbound,
    GenerateRequest,
    ImagesEncoded,
    WorkerDied,
)
from mmserve.messages.step import UNKNOWN_TIMES, DraftTimes, StepPlan, StepResult
from mmserve.router.kv_cache.listener import CacheListener
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.admission import Admission
from mmserve.router.scheduler.decode_pause import DecodePause
from mmserve.router.scheduler.image_requests import ImageRequests
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.requests import Clock, OutputBuffer, Record, RequestRegistry, RequestTimings
from mmserve.router.scheduler.results import StepResults
from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.scheduler.stages import stage_of
from mmserve.router.scheduler.step_budget import StepTimeModel
from mmserve.router.scheduler.step_planner import StepPlanner
from mmserve.router.speculation.drafter import Drafter


@dataclass(frozen=True)
class SchedulerConfig:
    """``max_num_seqs``: slots. ``max_num_batched_tokens``: of one step. ``max_model_len``: prompt plus output.
    ``max_step_s``: see StepTimeModel. ``whole_images``: no chunk of a prompt ends inside an image.
    ``ngram_drafts``: steps compute and verify tokens that are likely to follow (speculation). ``draft_context``: so do
    those that the ranks' draft model proposes, for text of up to so many tokens; 0: they have none. ``draft_times``: of
    it. ``shares_cores``: visual servers compute on the ranks' cores, see DecodePause."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_step_s: float = 0.0
    whole_images: bool = False
    ngram_drafts: bool = False
    draft_context: int = 0
    draft_times: DraftTimes = UNKNOWN_TIMES
    shares_cores: bool = False


class Scheduler:
    """Owns the state of every sequence and of the KV cache.

    Every request finishes: the oldest running sequence is never preempted and fits the cache alone; a sequence starts
    only if the step has a token left for it, so each step has a token for every decoding sequence and one for the
    oldest prompt; no waiting sequence is bypassed for ever.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_tokens: int,
        now: Clock,
        record: Record,
        listener: CacheListener | None = None,
    ) -> None:
        """``listener``: is told what the prefix cache holds."""
        self.kv = KvCacheManager(num_blocks, block_tokens, listener)
        # A sequence that fills the cache alone has reached the end of its context.
        self._context_tokens = min(config.max_model_len, num_blocks * block_tokens)
        # Room in every step beside one token for each of the other slots.
        self._largest_image = config.max_num_batched_tokens - config.max_num_seqs + 1 if config.whole_images else None
        self._running = RunningSet(config.max_num_seqs)
        self._waiting = WaitingQueue()
        self._images = ImageRequests()
        step_times = StepTimeModel(config.max_step_s)
        self._admission = Admission(
            self._waiting, self._running, self.kv, self._images, lambda: step_times.own_step_tokens
        )
        self._pause = None
        if config.shares_cores:
            self._pause = DecodePause(self._running, self._waiting, self._images, step_times, now)
        self._requests = RequestRegistry()
        self._replies = OutputBuffer(self._requests)
        self._timings = RequestTimings(now, record)
        self._planner = StepPlanner(
            self.kv,
            self._running,
            self._waiting,
            self._admission,
            self._timings,
            record,
            max_step_tokens=config.max_num_batched_tokens,
            step_times=step_times,
            largest_image=self._largest_image,
            drafter=Drafter(
                ngrams=config.ngram_drafts, model_context=config.draft_context, draft_times=config.draft_times
            )
            if config.ngram_drafts or config.draft_context
            else None,
        )
        self._results = StepResults(
            self.kv, self._running, self._waiting, self._admission, self._timings, self._replies, self._images, record
        )
        self._now = now
        self._num_received = 0
        self._num_plans = 0

    @property
    def num_running(self) -> int:
        return len(self._running.sequences)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def full_at(self) -> int:
        """Running sequences, if no other one can start before one of them ends: for want of a slot, or of blocks of the
        KV cache. 0: there is room."""
        is_full = not self._running.has_free_slot or self._admission.waits_for_blocks
        return len(self._running.sequences) if is_full else 0

    @property
    def idle(self) -> bool:
        """True if nothing is in flight and ``schedule`` would return None, before the next message arrives."""
        return not (
            self._running.sequences or self._waiting or self._running.has_freed_slots or self._results.in_flight
        )

    def take_replies(self) -> list[tuple[int, TokenReply | SequenceStages]]:
        """(HTTP worker, reply) since the last call, in order."""
        return self._replies.take()

    def take_starts(self) -> list[tuple[int, TokenReply]]:
        """(HTTP worker, reply) for the starts (``suspects``) in plans made since the last call; send them first."""
        return self._planner.suspects.take_starts()

    def take_encoder_messages(self) -> list[tuple[int, EncodeRequest | AbortRequest]]:
        """(item id that selects a visual server, message) since the last call, in order."""
        return self._images.take_messages()

    # ---- messages

    def receive(self, message: EngineInbound) -> None:
        """Accepts a request, an abort, the news of encoded images, a question, or the death of an HTTP worker, which
        ends its requests without replies.

        Ignores repeated messages and those that a newer attempt has replaced."""
        if isinstance(message, WorkerDied):
            for orphan in self._requests.worker_died(message):
                self._results.finish(orphan)
            return
        if isinstance(message, AskStages):
            self._replies.add_stages(message.reply_to, self._stages(message))
            return
        live = self._requests.live(message.id)
        is_current = live is not None and live.request.attempt == message.attempt
        if isinstance(message, ImagesEncoded):
            if live and is_current:
                self._images_encoded(live, message)
            return
        if isinstance(message, AbortRequest) and live and is_current:
            self._results.finish(live)
        elif self._requests.has_seen(message.id, message.attempt) or self._requests.is_orphan(message):
            return
        elif live:
            self._results.finish(live)
        if isinstance(message, AbortRequest):
            self._replies.add_abort(message)
        else:
            self._add_request(message)

    def _add_request(self, request: GenerateRequest) -> None:
        if request.look_up:
            self._look_up(request)
            return
        try:
            sequence = Sequence(request, self._num_received, self._now(), self._context_tokens)
        except ValueError as error:
            self._replies.add_finish(request, "error", f"malformed request: {error}")
            return
        self._num_received += 1
        if sequence.num_prompt_tokens + (not sequence.prompt_only) > self._context_tokens:
            too_long = f"a prompt of {sequence.num_prompt_tokens} tokens leaves no room in {self._context_tokens}"
            self._replies.add_finish(request, "error", f"{too_long} (context length or KV cache)")
        elif self._largest_image is not None and sequence.largest_image_tokens > self._largest_image:
            too_large = f"an image of {sequence.largest_image_tokens} tokens does not fit a step"
            self._replies.add_finish(request, "error", f"{too_large}, which has {self._largest_image} for one")
        elif sequence.num_output_tokens and (finish := sequence.finish_reason()):
            self._replies.add_finish(request, finish)
        else:
            self._requests.add(sequence)
            self._admission.enqueue(sequence)

    def _stages(self, asked: AskStages) -> SequenceStages:
        found = ((id, self._requests.live(id)) for id in asked.ids)
        return SequenceStages(
            stages={id: stage_of(live, awaits_images=self._images.awaits(live)) for id, live in found if live}
        )

    def _look_up(self, request: GenerateRequest) -> None:
        """Answer at once how much of a prompt is cached. Its length does not matter."""
        tokens = array("q")
        try:
            tokens.frombytes(request.prompt_ids)
        except ValueError as error:
            self._replies.add_finish(request, "error", f"malformed request: {error}")
            return
        self._replies.add_prompt_end(request, b"", self.kv.match_prefix(tokens, request.cache_salt).num_tokens, {})

    def _images_encoded(self, sequence: Sequence, message: ImagesEncoded) -> None:
        self._images.encoded(sequence, message)
        if not self._images.awaits(sequence):
            self._timings.encoded(sequence, message.stage_times)
        if self._waiting.take_back(sequence):
            self._admission.enqueue(sequence)

    def observe_chunk(self, num_tokens: int, seconds: float) -> None:
        """The ranks have computed a step with a prompt of so many tokens, before the first plan. 0 seconds: unknown."""
        self._planner.observe_chunk(num_tokens, seconds)

    # ---- planning

    def pause_s(self) -> float:
        """Seconds that ``schedule`` should not be called, unless a message arrives."""
        return 0.0 if self._pause is None or self._results.in_flight else self._pause.seconds()

    def schedule(self) -> StepPlan | None:
        """Plans the next step. None: nothing to send, or not before the next result.

        The cost does not depend on how many sequences wait.
        """
        step = self._planner.plan(may_preempt=not self._results.in_flight)
        if step is None or not (step.steps or self._running.has_freed_slots):
            return None
        self._results.in_flight.append(step)
        self._num_plans += 1
        return step.build(self._num_plans, self._running.take_freed_slots())

    # ---- results

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Takes in the result of ``plan``, the oldest one in flight."""
        self._planner.observe(self._results.apply(plan, result), result)
        if self._pause is not None:
            self._pause.step_ended()
