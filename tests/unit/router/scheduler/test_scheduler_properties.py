"""Random traffic through the scheduler: no leaks, no wrongly shared blocks, one terminal reply for each attempt."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.request import AbortReason, GenerateRequest
from mmserve.messages.sampling import SamplingParams
from tests.fakes.ranks.rank import generate_alone, prompt_alone
from tests.unit.router.builders import Engine, abort, ids, request, span


def virtual(item_id: int, num_tokens: int) -> range:
    """Token ids of an image."""
    return range(FIRST_VIRTUAL_TOKEN + 100 * item_id, FIRST_VIRTUAL_TOKEN + 100 * item_id + num_tokens)


_NUM_IDS = 12
_PREFIXES = [
    list(range(100, 148)),
    [*range(100, 132), *range(200, 217)],
    [*range(100, 110), *range(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 30)],
    [],
    [*range(300, 320), *virtual(2, 30), *range(400, 405), *virtual(3, 20)],
    [*virtual(2, 30), *virtual(4, 12), *virtual(3, 20)],
    [*range(300, 318), *virtual(5, 1)],
]
_IMAGE_PREFIX, _IMAGE_START, _IMAGE_TOKENS = 2, 10, 30
_SPANS = {
    _IMAGE_PREFIX: (span(_IMAGE_START, _IMAGE_TOKENS, 1),),
    4: (span(20, 30, 2, encoded=False), span(55, 20, 3, encoded=False)),
    5: (span(0, 30, 2, encoded=False), span(30, 12, 4, encoded=False), span(42, 20, 3, encoded=False)),
    6: (span(18, 1, 5, encoded=False),),
}
"""Prefix -> its images."""

prompts = st.tuples(st.integers(0, len(_PREFIXES) - 1), st.integers(0, 40), st.integers(0, 2))
requests = st.tuples(
    st.just("request"),
    st.integers(0, _NUM_IDS - 1),
    prompts,
    st.integers(1, 60),
    st.integers(0, 4),
    st.integers(0, 6),
    st.sampled_from([(), (3, 5), (99,)]),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([None, None, 0, 2]),
    st.sampled_from(["", "", "score", "embed"]),
    st.integers(-1, 1),
    st.sampled_from(["", "", "salt"]),
)
aborts = st.tuples(
    st.just("abort"),
    st.integers(0, _NUM_IDS - 1),
    st.sampled_from(["client", "media_error", "media_lost", "internal_error"]),
)
others = st.sampled_from(
    [
        ("run_step",),
        ("run_step",),
        ("run_step",),
        ("lose_image",),
        ("restore_image",),
        ("break_seed",),
        ("repair_seed",),
        ("restart",),
    ]
)
encoders = st.sampled_from(
    [("encode",), ("encode",), ("encode",), ("fail_to_encode",), ("restart_encoders",), ("forget_images",)]
)
bursts = st.tuples(
    st.just("burst"),
    st.integers(0, len(_PREFIXES) - 1),
    st.lists(st.tuples(st.integers(0, _NUM_IDS - 1), st.integers(0, 20), st.integers(0, 3)), min_size=2, max_size=8),
)
steps_with_aborts = st.tuples(st.just("run_step"), st.lists(aborts, min_size=1, max_size=3))
resends = st.tuples(st.just("resend"), st.integers(0, _NUM_IDS - 1))
repeats = st.tuples(st.just("repeat"), st.integers(0, _NUM_IDS - 1))
events = st.lists(
    st.one_of(requests, bursts, aborts, steps_with_aborts, resends, repeats, others, others, encoders),
    max_size=60,
)
engines = st.builds(
    dict,
    num_blocks=st.integers(4, 16),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([16, 24, 64]),
    max_model_len=st.sampled_from([64, 90, 1000]),
    expects_short=st.booleans(),
    max_step_s=st.sampled_from([0.0, 0.02, 1.0]),
    token_s=st.sampled_from([0.0, 0.001, 0.1]),
    block_tokens=st.sampled_from([16, 16, 8, 32]),
)


class Traffic:
    """Replays events and keeps, like the HTTP workers, what each client has received."""

    def __init__(self, options: dict[str, int]) -> None:
        self.options = options
        self.engine = Engine(**options)
        self.sent: dict[str, GenerateRequest] = {}
        self.asked: set[tuple[str, int]] = set()
        self.replaced: set[tuple[str, int]] = set()
        self.before_restart: set[str] = set()
        """Ids answered before a restart; they are not sent again."""

    def request(
        self,
        number: int,
        prompt: tuple[int, int, int],
        max_tokens: int,
        minimum: int,
        seed: int,
        stop_ids: tuple[int, ...],
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        prompt_only: str = "",
        priority: int = 0,
        cache_salt: str = "",
    ):
        name = str(number)
        if name in self.sent:
            return
        kind, length, fill = prompt
        tokens = [*_PREFIXES[kind], *[fill] * length]
        spans = _SPANS.get(kind, ())
        self.send(
            request(
                name,
                tokens,
                max_tokens=0 if prompt_only else max_tokens,
                min_tokens=minimum,
                seed=seed,
                stop_ids=stop_ids,
                spans=spans,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                pooling=prompt_only == "embed",
                priority=priority,
                cache_salt=cache_salt,
            )
        )

    def encode(self) -> None:
        """A visual server encodes one image."""
        if self.engine.encoders.requests:
            self.engine.encode_next()

    def fail_to_encode(self) -> None:
        """The image that is next is broken for the request that waits longest."""
        if requests := self.engine.encoders.requests:
            failed = requests.pop(next(iter(requests)))
            self.engine.scheduler.receive(abort(failed.id, attempt=failed.attempt, reason="media_error"))

    def restart_encoders(self) -> None:
        """All visual servers lose their requests; HTTP workers send them again."""
        lost = list(self.engine.encoders.requests)
        self.engine.encoders.requests.clear()
        for name in lost:
            self.resend(int(name))

    def forget_images(self) -> None:
        """Requests that come later find their images neither in the arena nor, some day, in the prefix cache."""
        waiting = {each.item_id for asked in self.engine.encoders.requests.values() for each in asked.spans}
        sequences = self.engine.scheduler._requests._live.values()
        needed = {each.item_id for sequence in sequences for each in sequence.request.spans}
        self.engine.encoders.encoded &= waiting | needed

    def burst(self, kind: int, members: list[tuple[int, int, int]]) -> None:
        """Several requests with the same prefix at once; one of the seeds may be broken."""
        for number, length, seed in members:
            self.request(number, (kind, length, 1), 9, 0, seed, ())

    def send(self, message: GenerateRequest) -> None:
        self.sent[message.id] = message
        self.asked.add((message.id, message.attempt))
        self.engine.scheduler.receive(message)

    def abort(self, number: int, reason: AbortReason) -> None:
        name = str(number)
        if name in self.before_restart:
            return
        attempt = self.sent[name].attempt if name in self.sent else 0
        self.asked.add((name, attempt))
        self.engine.scheduler.receive(abort(name, attempt=attempt, reason=reason))
        self.sent.setdefault(name, request(name, [1]))

    def repeat(self, number: int) -> None:
        """Sends the same message a second time."""
        message = self.sent.get(str(number))
        if message and message.id not in self.before_restart:
            self.send(message)

    def resend(self, number: int) -> None:
        """Sends a new attempt with the tokens received so far, unless the client has its answer."""
        old = self.sent.get(str(number))
        if (
            old is None
            or old.id in self.before_restart
            or self.engine.finish(old.id, old.attempt) not in (None, "media_lost")
        ):
            return
        if self.engine.finish(old.id, old.attempt) is None:
            self.replaced.add((old.id, old.attempt))
        self.send(self._next_attempt(old))

    def restart(self) -> None:
        """Restarts router and ranks; all live requests are sent again."""
        old_engine, self.engine = self.engine, Engine(**self.options)
        self.engine.replies = old_engine.replies
        self.engine.encoders.encoded = old_engine.encoders.encoded
        for old in list(self.sent.values()):
            if old_engine.finish(old.id, old.attempt) is None:
                self.replaced.add((old.id, old.attempt))
                self.send(self._next_attempt(old))
            else:
                self.before_restart.add(old.id)

    def _next_attempt(self, old: GenerateRequest) -> GenerateRequest:
        num_rows = 0
        if (top := old.sampling.prompt_logprobs) is not None:
            num_rows = len(self.prompt_logprobs(old)) // row_nbytes(top)
        return msgspec.structs.replace(
            old, output_ids=ids(self.received(old)), attempt=old.attempt + 1, num_prompt_logprobs=num_rows
        )

    def received(self, message: GenerateRequest) -> list[int]:
        """The tokens that the client has of a request, over all attempts."""
        return [token for attempt in range(message.attempt + 1) for token in self.engine.output(message.id, attempt)]

    def logprobs(self, message: GenerateRequest) -> list[bytes]:
        """The log-probabilities that came with the tokens of ``received``."""
        return [
            packed for attempt in range(message.attempt + 1) for packed in self.engine.logprobs(message.id, attempt)
        ]

    def prompt_logprobs(self, message: GenerateRequest) -> bytes:
        """The rows that the client has of its prompt, over all attempts."""
        return b"".join(self.engine.prompt_logprobs(message.id, attempt) for attempt in range(message.attempt + 1))

    def lose_image(self) -> None:
        self.engine.rank.lost_items.add(1)

    def restore_image(self) -> None:
        self.engine.rank.lost_items.clear()

    def break_seed(self) -> None:
        self.engine.rank.broken_seeds.add(2)

    def repair_seed(self) -> None:
        self.engine.rank.broken_seeds.clear()

    def run_step(self, aborts: tuple[tuple, ...] = ()) -> None:
        """One pass of the router's loop. ``aborts`` arrive between plan and result."""

        def meanwhile() -> None:
            for _, number, reason in aborts:
                self.abort(number, reason)

        self.engine.run_step(meanwhile)

    def apply(self, event: tuple) -> None:
        action: Callable[..., None] = getattr(self, event[0])
        action(*event[1:])
        self.engine.encoders.receive(self.engine.scheduler.take_encoder_messages())
        self.engine.take_replies()
        self.engine.check_memory()


def tokens_of(data: bytes) -> list[int]:
    return array("q", data).tolist()


@pytest.mark.parametrize(
    ("depth", "max_new_tokens", "max_forced_tokens", "drafts"),
    [
        (1, 1, 0, False),
        (2, 1, 0, False),
        (1, 4, 0, False),
        (1, 4, 20, False),
        (2, 1, 20, False),
        (1, 1, 0, True),
        (2, 1, 0, True),
        (1, 1, 20, True),
    ],
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(engines, events)
def test_random_traffic(
    depth: int, max_new_tokens: int, max_forced_tokens: int, drafts: bool, options: dict[str, int], traffic: list[tuple]
) -> None:
    tokens = {"max_new_tokens": max_new_tokens, "max_forced_tokens": max_forced_tokens, "drafts": drafts}
    clients = Traffic(options | {"depth": depth} | tokens)
    for event in traffic:
        clients.apply(event)
    engine = clients.engine
    engine.run_and_encode(max_steps=4000)
    engine.check_memory()
    assert not engine.scheduler._waiting._awaiting_images
    assert not engine.scheduler._images._unanswered
    assert engine.scheduler.kv.num_used == 0
    assert not engine.rank.num_used_slots
    for name, attempt in clients.asked:
        finishes = [reply.finish for reply in engine.replies[name, attempt] if reply.finish]
        assert len(finishes) == (0 if (name, attempt) in clients.replaced else 1)
        engine.finish(name, attempt)
    for message in clients.sent.values():
        sampling: SamplingParams = message.sampling
        prompt = tokens_of(message.prompt_ids)
        prompt_only = message.pooling or not sampling.max_tokens
        if len(prompt) + (not prompt_only) > engine.context_tokens:
            continue
        rows, embedding = prompt_alone(prompt, sampling.prompt_logprobs or 0)
        expected_rows = b"".join(rows) if sampling.prompt_logprobs is not None else b""
        received_rows = clients.prompt_logprobs(message)
        ended = engine.finish(message.id, message.attempt) in ("stop", "length")
        assert received_rows == expected_rows if ended else expected_rows.startswith(received_rows)
        if ended and message.pooling:
            assert engine.replies[message.id, message.attempt][-1].embedding == embedding
        expected, logprobs, finish = generate_alone(prompt, sampling, engine.context_tokens)
        received = clients.received(message)
        if engine.finish(message.id, message.attempt) in ("stop", "length"):
            assert (received, engine.finish(message.id, message.attempt)) == (expected, finish)
        else:
            assert received == expected[: len(received)]
        assert clients.logprobs(message) == logprobs[: len(received)]


@pytest.mark.parametrize("depth", [1, 2])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(engines, st.lists(st.tuples(prompts, st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=30))
def test_all_requests_finish_in_bounded_steps(depth: int, options: dict[str, int], jobs: list[tuple]) -> None:
    engine = Engine(**options, depth=depth)
    bound = 10
    for number, ((kind, length, fill), max_tokens, seed) in enumerate(jobs):
        prompt = [*_PREFIXES[kind], *[fill] * length, 7]
        spans = tuple(structs.replace(each, data=None) for each in _SPANS.get(kind, ()))
        message = request(str(number), prompt, max_tokens=max_tokens, seed=seed, stop_ids=(99,), spans=spans)
        engine.scheduler.receive(message)
        bound += len(prompt) // options["max_num_batched_tokens"] + max_tokens + 2
    # Preemption costs no more than computing the requests one after the other.
    assert engine.run(max_steps=2 * bound) <= 2 * bound
    assert all(engine.finish(str(number)) in ("length", "error") for number in range(len(jobs)))


def test_a_plan_launched_ahead_goes_on_behind_a_chunk_whose_image_is_lost() -> None:
    sizes = {"num_blocks": 4, "block_tokens": 16, "max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 64}
    clients = Traffic(sizes | {"depth": 2, "max_new_tokens": 1, "max_forced_tokens": 20})
    clients.lose_image()
    clients.request(0, (0, 0, 0), 1, 0, 0, (), priority=1)
    clients.request(1, (_IMAGE_PREFIX, 5, 0), 1, 0, 0, (), prompt_logprobs=0)
    clients.engine.run_and_encode(max_steps=100)
    clients.engine.check_memory()
    assert clients.engine.finish("0") == "length"
    assert clients.engine.finish("1") == "media_lost"
    assert not clients.prompt_logprobs(clients.sent["1"])
