"""Serves one request: check its grammar, read media, lease cache slots, build the prompt, submit it, stream text.

Each step is a service that does not know the others. A request runs in its own task (``task.RequestTask``): a client's
disconnect is one cancellation, and the leases are released after the engine has ended the sequence.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from mmserve.httpserver import stage_times
from mmserve.httpserver.call import GenerateCall, LeasedItem, MediaItem, MediaRef, Prompt, kept_nbytes
from mmserve.httpserver.conversation import Conversation, PromptInput, WrittenPrompt, num_chars, num_parts
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.engine.row_counts import RowCounts
from mmserve.httpserver.grammars import GrammarChecks, constrained
from mmserve.httpserver.mm_cache.alloc_path import AllocPath, AllocPaths
from mmserve.httpserver.mm_cache.named_images import with_named
from mmserve.httpserver.output.answer_format import AnswerFormat, Reading, reading_nbytes
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.output.echoed_prompt import EchoedPrompt
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.prompt.turns import Turn
from mmserve.httpserver.request.choice import Choice, lease
from mmserve.httpserver.request.metrics import ChoiceMetrics, count_request
from mmserve.httpserver.request.replay import replayed
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.sequences import sequences_of
from mmserve.httpserver.request.token_bans import check_a_token_is_left
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import Grid
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.processors.interface import Expansion
from mmserve.runtime.worker_threads import WorkerThreads

T = TypeVar("T")

_TOOL_PARAMS = ("", "tools", "tool_choice")
"""``GenerateCall.grammar_param`` of calls whose grammar is that of their tools."""
_LONG_PROMPT_CHARS = 20_000
"""Longer prompts are built in a thread: templating and tokenizing them blocks for milliseconds."""
_LONG_BAD_WORDS_CHARS = 2000
"""Longer bad words are tokenized in a thread. Each is tokenized twice, by itself."""
_MESSAGE_CHARS = 80
"""Cost of a message or part apart from its text, as a length of text."""


class PromptSource(Protocol):
    """Implemented by prompt.builder.PromptBuilder."""

    def build(self, prompt: PromptInput, media: Sequence[MediaRef], leased: Sequence[LeasedItem]) -> Prompt: ...

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]: ...
    def token_ids(
        self, prompt: PromptInput, media: Sequence[MediaRef], expansions: Sequence[Expansion]
    ) -> array[int]: ...
    def turns(
        self, conversation: Conversation, media: Sequence[MediaRef], expansions: Sequence[Expansion]
    ) -> list[Turn]: ...


class ReadImage(NamedTuple):
    """An upright image in pixels, and its tokens in the prompt, which stand in these grids. ``item``: as what the cache
    server knows it."""

    width: int
    height: int
    tokens: int
    grids: tuple[Grid, ...]
    item: AllocItem


class PromptTokens(NamedTuple):
    """Of a request that generates nothing: the token ids of each prompt, its images in order, and what they become."""

    ids: list[array[int]]
    images: list[ReadImage]
    expansions: list[Expansion]


@dataclass(frozen=True)
class RequestPath:
    """The services of one worker, in the order in which a request uses them."""

    worker: int
    max_model_len: int
    max_fetched_nbytes: int
    """Limit for all fetched images of one request together."""
    grammars: GrammarChecks
    alloc_paths: AllocPaths
    prompts: PromptSource
    prompt_threads: WorkerThreads
    """For long prompts. Returns from a call after its thread, so that the memory it reads is reserved until then."""
    dispatcher: Dispatcher
    vocabulary: Vocabulary
    answer_format: AnswerFormat
    eos_token_ids: tuple[int, ...]
    """Of the model: a grammar ends an answer with one of them."""
    metrics: MetricsClient
    row_counts: RowCounts | None = None
    """Of a model whose visual servers must be asked what an image becomes."""

    async def generate(self, call: GenerateCall, deltas: DeltaStream, resources: RequestResources) -> None:
        """Generate the answer to ``call`` into ``deltas``; return once all leases are released. Raises MmserveError.

        The caller must keep no reference to ``call.media``: the body's memory is freed here once the images are read.
        """
        call = self._with_tool_grammar(call)
        await self._check_grammar(call)
        call = await self._with_calls(call)
        call = await self._with_bad_words(call)
        if not call.prompt_only:
            check_a_token_is_left(call.sampling)
        alloc_path = self.alloc_paths.choose()
        items = await self._read(alloc_path, call, resources)
        resources.images_are_read = True
        inline_nbytes = sum(len(item.data) for item, ref in zip(items, call.media, strict=True) if ref.is_inline)
        # Drops the last reference to the body with its base64 text.
        call = replace(call, media=tuple(MediaRef("", ref.param) for ref in call.media))
        resources.hold(kept_nbytes(call) + inline_nbytes)
        asked_s = time.monotonic()
        async with lease(alloc_path, call.request_id, items) as leased:
            started_s = time.monotonic()
            prompts = await self._build(call, leased)
            stage_times.record("prompt", time.monotonic() - started_s)
            num_image_tokens = sum(span.num_tokens for prompt in prompts for span in prompt.spans)
            echoed = await self._echoed(call, prompts)
            deltas.open(sum(len(prompt.ids) for prompt in prompts), num_image_tokens, echoed)
            if call.view.token_ids:
                deltas.show_prompts(tuple(prompt.ids for prompt in prompts))
            readings = [self._reading(*pair) for pair in zip(call.prompts, prompts, strict=True)]
            if any(reading is not None and reading.in_reasoning for reading in readings):
                call = self._with_tool_grammar(self._with_thought(call), in_reasoning=True)
                await self._check_grammar(call)
            contexts = [_context(*pair) for pair in zip(call.prompts, prompts, strict=True)]
            requests = sequences_of(call, prompts, self.worker, self.max_model_len, started_s - asked_s)
            for prompt, request in zip(prompts, requests[:: call.n], strict=True):
                count_request(self.metrics, call, len(prompt.ids), request.sampling.max_tokens)
            tools_nbytes = sum(map(reading_nbytes, call.prompts))
            call = replace(call, prompts=())  # from here on the token ids are enough
            ids_nbytes = sum(len(request.prompt_ids) for request in requests[:: call.n])
            resources.hold(kept_nbytes(call) + inline_nbytes + ids_nbytes + tools_nbytes)
            del prompts, prompt, echoed
            choices = []
            for index, request in enumerate(requests):
                of_prompt = index // call.n
                text = Detokenizer(
                    self.vocabulary,
                    index,
                    call.stop,
                    request.sampling,
                    readings[of_prompt],
                    contexts[of_prompt],
                    call.view,
                )
                latencies = ChoiceMetrics(self.metrics, call)
                services = (self.dispatcher, self.metrics, call.stream and call.relayed is not None)
                choices.append(Choice(call, alloc_path, items, request, text, deltas, latencies, *services))
            if call.relayed is not None and call.relayed.sampled:
                choices = replayed(choices, call.relayed.sampled)
            await _generate_all(choices)

    def _with_tool_grammar(self, call: GenerateCall, *, in_reasoning: bool = False) -> GenerateCall:
        """``call`` with the grammar that its tools ask for, if they ask for one and it has no other."""
        for prompt in call.prompts:
            if isinstance(prompt, Conversation) and call.grammar_param in _TOOL_PARAMS:
                grammar, param = self.answer_format.grammar(prompt, in_reasoning=in_reasoning)
                sampling = constrained(call.sampling, grammar, self.eos_token_ids, param)
                return replace(call, sampling=sampling, grammar_param=param)
        return call

    async def _with_calls(self, call: GenerateCall) -> GenerateCall:
        """``call`` with its tools' calls as another form of answer, beside the client's own grammar.

        Raises InvalidRequest if both together cannot be used.
        """
        own = call.sampling.grammar
        if not own or call.grammar_param in _TOOL_PARAMS:
            return call
        for prompt in call.prompts:
            if isinstance(prompt, Conversation) and (grammar := self.answer_format.calls_or_answer(prompt, own)) != own:
                await self.grammars.check(grammar, "tools")
                return replace(call, sampling=replace(call.sampling, grammar=grammar))
        return call

    def _with_thought(self, call: GenerateCall) -> GenerateCall:
        """``call`` with the end of a thought before the client's own grammar."""
        if not call.sampling.grammar or call.grammar_param in _TOOL_PARAMS:
            return call
        grammar = self.answer_format.after_thought(call.sampling.grammar)
        return replace(call, sampling=replace(call.sampling, grammar=grammar))

    async def _with_bad_words(self, call: GenerateCall) -> GenerateCall:
        """``call`` with the tokens of its bad words. Raises InvalidRequest for a word of too many tokens."""
        words = call.bad_words
        if not words:
            return call
        if sum(map(len, words)) > _LONG_BAD_WORDS_CHARS:
            ids = await self.prompt_threads.run(lambda: self.prompts.bad_word_ids(words))
        else:
            ids = self.prompts.bad_word_ids(words)
        return replace(call, sampling=replace(call.sampling, bad_words=ids), bad_words=())

    async def _check_grammar(self, call: GenerateCall) -> None:
        if call.sampling.grammar:
            await self.grammars.check(call.sampling.grammar, call.grammar_param)

    def _reading(self, prompt: PromptInput, built: Prompt) -> Reading | None:
        return self.answer_format.reading(prompt, built.tail)

    async def token_ids(self, call: GenerateCall, resources: RequestResources) -> PromptTokens:
        """All prompts of ``call``, however long, with the image token's id for each row of an image.

        Nothing is leased. Images are read as far as their headers, for their size in pixels. Raises MmserveError.
        """
        alloc_path = self.alloc_paths.choose()
        items, token_ids = await self._read(alloc_path, call, resources), self.prompts.token_ids
        expansions = alloc_path.leases.expansions(items)
        ids = await self._of_each_prompt(call, lambda prompt: token_ids(prompt, call.media, expansions))
        images = [
            ReadImage(item.width, item.height, each.num_rows, tuple(run.grid for run in each.runs), known_as)
            for item, each, known_as in zip(
                items, expansions, alloc_path.leases.alloc_items(items, expansions), strict=True
            )
        ]
        return PromptTokens(ids, images, expansions)

    async def _read(self, alloc_path: AllocPath, call: GenerateCall, resources: RequestResources) -> list[MediaItem]:
        """Read the images. Before the first fetch, reserves memory for as much as one request may fetch."""
        if not call.media:
            return []
        refs = [ref for ref in call.media if not ref.is_named]
        if not all(ref.is_inline for ref in refs):
            await resources.reserve_fetch(self.max_fetched_nbytes)
        read = await alloc_path.media.read(refs, call.cache_salt, call.processing)
        items = await with_named(call, read, alloc_path.leases)
        if self.row_counts is not None:
            items = await self.row_counts.with_counts(items)
        fetched = (item for item, ref in zip(items, call.media, strict=True) if not ref.is_inline)
        resources.shrink_fetched(sum(len(item.data) for item in fetched))
        return items

    async def _build(self, call: GenerateCall, leased: Sequence[LeasedItem]) -> list[Prompt]:
        build = self.prompts.build
        return await self._of_each_prompt(call, lambda prompt: build(prompt, call.media, leased))

    async def _of_each_prompt(self, call: GenerateCall, work: Callable[[PromptInput], T]) -> list[T]:
        """``work`` on each prompt in turn; in a thread if all together are long."""
        if sum(map(_cost, call.prompts)) > _LONG_PROMPT_CHARS:
            return [await self.prompt_threads.run(partial(work, prompt)) for prompt in call.prompts]
        return [work(prompt) for prompt in call.prompts]

    async def _echoed(self, call: GenerateCall, prompts: Sequence[Prompt]) -> tuple[EchoedPrompt, ...]:
        if not call.echo:
            return ()
        built = iter(prompts)

        def echoed(prompt: PromptInput) -> EchoedPrompt:
            assert isinstance(prompt, WrittenPrompt), "a conversation is not echoed"
            return EchoedPrompt.of(prompt, next(built).ids, self.vocabulary)

        return tuple(await self._of_each_prompt(call, echoed))


async def _generate_all(choices: Sequence[Choice]) -> None:
    """All at once, each in a task of its own; the only one in the caller's."""
    if len(choices) == 1:
        # Requests that came together have their prompts by then, and their messages wake the engine once.
        await asyncio.sleep(0)
        return await choices[0].generate()
    async with asyncio.TaskGroup() as group:
        for choice in choices:
            group.create_task(choice.generate())


def _cost(prompt: PromptInput) -> int:
    """Of building a prompt, as a length of text."""
    return num_chars(prompt) + _MESSAGE_CHARS * num_parts(prompt)


def _context(prompt: PromptInput, built: Prompt) -> Sequence[int]:
    """The end of a text that the answer goes on with. The answer in a conversation is a text of its own."""
    return built.ids[-1:] if isinstance(prompt, WrittenPrompt) else ()
