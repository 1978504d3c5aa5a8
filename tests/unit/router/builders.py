"""Requests, and a scheduler coupled to a fake rank, for the router's tests."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import AbortReason, AbortRequest, EncodeRequest, GenerateRequest, ImagesEncoded
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan
from mmserve.router.kv_cache.listener import CacheListener
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from mmserve.router.scheduler.sequence import SequenceStatus
from mmserve.router.speculation.draft_source import Draft
from mmserve.router.speculation.drafter import Drafter
from tests.fakes.ranks.rank import BLOCK_TOKENS, VOCAB_SIZE, FakeRank, cells_of, generate_alone

STOP_IDS = (3, 5)


def ids(token_ids: Iterable[int]) -> bytes:
    return array("q", token_ids).tobytes()


def request(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 8,
    min_tokens: int = 0,
    seed: int = 0,
    stop_ids: tuple[int, ...] = (),
    attempt: int = 0,
    output: Sequence[int] = (),
    spans: tuple[MediaSpan, ...] = (),
    reply_to: int = 0,
    logprobs: int | None = None,
    num_deaths: int = 0,
    prompt_logprobs: int | None = None,
    num_prompt_logprobs: int = 0,
    pooling: bool = False,
    priority: int = 0,
    cache_salt: str = "",
) -> GenerateRequest:
    return GenerateRequest(
        id=request_id,
        reply_to=reply_to,
        prompt_ids=ids(prompt),
        spans=spans,
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            seed=seed,
            stop_token_ids=stop_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        ),
        cache_salt=cache_salt,
        pooling=pooling,
        priority=priority,
        num_prompt_logprobs=num_prompt_logprobs,
        output_ids=ids(output),
        arrival_s=0.0,
        attempt=attempt,
        num_deaths=num_deaths,
    )


def abort(request_id: str, *, reason: AbortReason = "client", attempt: int = 0, **fields: Any) -> AbortRequest:
    return AbortRequest(id=request_id, reply_to=0, reason=reason, attempt=attempt, **fields)


def span(start: int, num_tokens: int, item_id: int, *, encoded: bool = True) -> MediaSpan:
    handle = Handle(generation=1, offset=0, nbytes=num_tokens)
    return MediaSpan(
        start=start,
        num_tokens=num_tokens,
        item_id=item_id,
        data=None if encoded else handle,
        embed=handle,
        media_index=0,
    )


class Encoders:
    """The visual servers: what they were asked for, and which images are in the arena."""

    def __init__(self) -> None:
        self.requests: dict[str, EncodeRequest] = {}
        """Request id -> the images that are not encoded yet."""
        self.received: list[EncodeRequest | AbortRequest] = []
        self.encoded: set[int] = set()

    def receive(self, messages: list[tuple[int, EncodeRequest | AbortRequest]]) -> None:
        for item_id, message in messages:
            self.received.append(message)
            if isinstance(message, AbortRequest):
                self.requests.pop(message.id, None)
                continue
            asked = self.requests.get(message.id)
            assert asked is None or asked.attempt < message.attempt, "one request of an attempt at a time"
            assert item_id == message.spans[0].item_id
            assert all(each.data is not None for each in message.spans)
            self.requests[message.id] = message

    def encode_next(self) -> list[ImagesEncoded]:
        """Encodes the next image of the oldest request. Returns the news for every request that needs it."""
        item_id = next(iter(self.requests.values())).spans[0].item_id
        self.encoded.add(item_id)
        return [self._answer(each, item_id) for each in list(self.requests.values()) if _needs(each, item_id)]

    def _answer(self, asked: EncodeRequest, item_id: int) -> ImagesEncoded:
        spans = tuple(each for each in asked.spans if each.item_id != item_id)
        if spans:
            self.requests[asked.id] = structs.replace(asked, spans=spans)
            return ImagesEncoded(id=asked.id, attempt=asked.attempt, item_ids=(item_id,))
        del self.requests[asked.id]
        return ImagesEncoded(id=asked.id, attempt=asked.attempt, item_ids=(item_id,), stage_times={"encode": 0.5})


def _needs(asked: EncodeRequest, item_id: int) -> bool:
    return any(each.item_id == item_id for each in asked.spans)


class OracleDrafter(Drafter):
    """Drafts what a sequence will get, as the fake rank's own answers do not repeat; some tokens are wrong."""

    def __init__(self, context_tokens: int) -> None:
        super().__init__()
        self._context_tokens = context_tokens

    def drafts(self, decoding: list[Any]) -> dict[Any, Draft]:
        found = {}
        for sequence in decoding:
            state = sum(sequence.tokens)
            if sequence.max_draft_tokens > 0 and state % 4:
                answer = generate_alone(
                    sequence.tokens[: sequence.num_prompt_tokens], sequence.request.sampling, self._context_tokens
                )[0]
                draft = answer[sequence.num_output_tokens :][: min(sequence.max_draft_tokens, state % 11)]
                draft[state % 8 :] = [(token_id + 1) % VOCAB_SIZE for token_id in draft[state % 8 :]]
                found |= {sequence: Draft(len(draft), tuple(draft))} if draft else {}
        return found


class Engine:
    """A scheduler and a fake rank, with at most ``depth`` plans in flight. Keeps the replies and the metrics."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 1024,
        expects_short: bool = False,
        max_step_s: float = 0.0,
        token_s: float = 0.0,
        depth: int = 1,
        block_tokens: int = BLOCK_TOKENS,
        max_new_tokens: int = 1,
        whole_images: bool = False,
        max_forced_tokens: int = 0,
        drafts: bool = False,
        shares_cores: bool = False,
        listener: CacheListener | None = None,
    ) -> None:
        """``expects_short``: many short answers were observed, so long ones are underestimated and lead to preemption.
        ``token_s``: the forward time that the rank reports for a token. ``max_new_tokens``: most tokens of one
        sequence in one result; ``max_forced_tokens``: most that follow them without keys and values. ``drafts``:
        sequences get those of OracleDrafter."""
        self.depth = depth
        self.in_flight: deque[StepPlan] = deque()
        self.context_tokens = min(max_model_len, num_blocks * block_tokens)
        self.clock_s = 0.0
        self.metrics: dict[str, list[float]] = defaultdict(list)
        self.rank = FakeRank(
            num_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            token_s,
            block_tokens,
            max_new_tokens,
            max_forced_tokens,
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                *(max_num_seqs, max_num_batched_tokens, max_model_len, max_step_s, whole_images),
                shares_cores=shares_cores,
            ),
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            now=lambda: self.clock_s,
            record=lambda name, value: self.metrics[name].append(value),
            listener=listener,
        )
        if drafts:
            self.scheduler._planner._drafter = OracleDrafter(self.context_tokens)
        for _ in range(200 if expects_short else 0):
            self.scheduler._admission.kv_demand.output_lengths.observe(1)
        self.replies: dict[tuple[str, int], list[TokenReply]] = defaultdict(list)
        self.encoders = Encoders()
        self._spans: dict[int, tuple[MediaSpan, ...]] = {}
        """Slot -> images of its sequence."""

    def run_step(self, meanwhile: Callable[[], None] = lambda: None) -> StepPlan | None:
        """One pass of the router's loop; returns the plan whose result was applied. ``meanwhile`` runs before that."""
        was_idle = self.scheduler.idle
        self.plan()
        assert not (was_idle and self.in_flight)
        assert (not self.in_flight) == self.scheduler.idle, "idle: nothing to plan and nothing in flight"
        plan = self.in_flight[0] if self.in_flight else None
        if plan:
            self.clock_s += 1.0
            meanwhile()
            self.apply()
        self.take_replies()
        return plan

    def plan(self) -> None:
        """Plans steps until ``depth`` plans are in flight."""
        while len(self.in_flight) < self.depth and (plan := self.scheduler.schedule()):
            self.in_flight.append(plan)
            self._check_images(plan)
        self.encoders.receive(self.scheduler.take_encoder_messages())

    def _check_images(self, plan: StepPlan) -> None:
        """Asserts that all rows of images that the plan computes are in the arena."""
        self._spans |= {new.slot: new.spans for new in plan.new}
        for step in plan.steps:
            for each in self._spans.get(step.slot, ()):
                computed = each.start < step.start + step.num_tokens and step.start < each.start + each.num_tokens
                ready = each.data is None or each.item_id in self.encoders.encoded
                assert ready or not computed, f"image {each.item_id} is computed before it is encoded"

    def encode_next(self) -> None:
        """The visual servers encode one more image, and tell the scheduler."""
        for message in self.encoders.encode_next():
            self.scheduler.receive(message)
        self.encoders.receive(self.scheduler.take_encoder_messages())

    def apply(self) -> None:
        """Computes the oldest plan in flight and applies its result."""
        plan = self.in_flight.popleft()
        self.scheduler.apply(plan, self.rank.step(plan))
        self.encoders.receive(self.scheduler.take_encoder_messages())

    def take_replies(self) -> None:
        for reply_to, reply in self.scheduler.take_replies():
            assert reply_to in (0, 1)
            self.replies[reply.id, reply.attempt].append(reply)

    def run(self, max_steps: int = 5000) -> int:
        """Runs until idle; returns the number of steps."""
        for num_steps in range(max_steps):
            if self.run_step() is None:
                return num_steps
        raise AssertionError(f"not finished after {max_steps} steps")

    def run_and_encode(self, max_steps: int = 5000) -> None:
        """Runs until idle with every image encoded that is asked for."""
        self.run(max_steps)
        while self.encoders.requests:
            self.encode_next()
            self.run(max_steps)

    def output(self, request_id: str, attempt: int = 0) -> list[int]:
        return [token_id for reply in self.replies[request_id, attempt] for token_id in reply.token_ids]

    def logprobs(self, request_id: str, attempt: int = 0) -> list[bytes]:
        return [packed for reply in self.replies[request_id, attempt] for packed in reply.logprobs]

    def prompt_logprobs(self, request_id: str, attempt: int = 0) -> bytes:
        return b"".join(reply.prompt_logprobs for reply in self.replies[request_id, attempt])

    def finish(self, request_id: str, attempt: int = 0) -> str | None:
        """The finish reason; asserts that there is at most one, on the last reply."""
        finishes = [reply.finish for reply in self.replies[request_id, attempt]]
        assert not any(finishes[:-1]), f"{request_id}: replies after the terminal one"
        return finishes[-1] if finishes else None

    def check_memory(self) -> None:
        """Asserts that each block is either free, cached or used, and that cached blocks hold what was computed."""
        kv, running = self.scheduler.kv, self.scheduler._running.sequences
        pool, tree = kv._pool, kv._tree
        users: dict[int, int] = defaultdict(int)
        running_users: dict[int, int] = defaultdict(int)
        for sequence in running:
            for block in sequence.block_table.blocks:
                users[block] += 1
                running_users[block] += sequence.status is SequenceStatus.RUNNING
            for node, block in zip(sequence.block_table.nodes, sequence.block_table.blocks, strict=False):
                assert node.block == block
        roots = [tree.root, *tree._salted_roots.values()]
        all_nodes = [node for root in roots for node in tree.descendants(root)]
        nodes = {node.block: node for node in all_nodes}
        evictable = {node.block for node in tree._evictable}
        assert len(nodes) == len(all_nodes), "a block is in the trees once"
        assert all(root.children for root in roots[1:]), "a salt is kept as long as it has blocks"
        assert len(set(pool._free)) == len(pool._free)
        for block in range(pool.num_blocks):
            assert pool.ref_count(block) == users[block]
            states = (block in pool._free, block in evictable, users[block] > 0)
            assert sum(states) == 1, f"block {block}: free, evictable, used = {states}"
            if block in evictable:
                assert block in nodes
            if running_users[block] > 1:
                assert block in nodes, "only cached blocks are shared"
        for sequence in self.scheduler._waiting._awaiting_images.values():
            assert self.scheduler._images.awaits(sequence), "nobody would wake it"
        in_flight = [node for step in self.scheduler._results.in_flight for node in step.cached_nodes.values()]
        for root in roots:
            self._check_tree(root, [], in_flight)

    def _check_tree(self, node, prefix: list[int], in_flight: list) -> None:
        """``in_flight``: nodes that, with all below them, are not computed yet."""
        for key, child in node.children.items():
            if child in in_flight:
                continue
            own = array("q", key)
            tokens = prefix + list(own)
            start = child.block * self.rank.block_tokens
            cells = self.rank.cells[start : start + len(own)]
            assert cells == cells_of(tokens)[-len(own) :], f"block {child.block} does not hold the tokens of its node"
            assert self.scheduler.kv._tree.is_full(child) or not child.children, "a partial block has no descendants"
            self._check_tree(child, tokens, in_flight)
