"""Builds the prompt: messages and leased images to token ids, with virtual ids and spans for images.

Control tokens and image placeholders come only from the chat template; user text never becomes one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import tokenizers

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import LeasedItem, MediaRef, Prompt
from mmserve.httpserver.conversation import (
    Conversation,
    MediaPart,
    Message,
    PromptInput,
    TextPart,
    WrittenPrompt,
)
from mmserve.httpserver.prompt.bad_words import bad_word_ids
from mmserve.httpserver.prompt.guarded_encoding import EncodedText, GuardedEncoder
from mmserve.httpserver.prompt.image_texts import PlacesMismatch
from mmserve.httpserver.prompt.inline_system import fold_late_system
from mmserve.httpserver.prompt.media_spans import LeasedRun, runs_of
from mmserve.httpserver.prompt.model_tokenizer import image_texts, read_tokenizer
from mmserve.httpserver.prompt.template.chat_template import ChatTemplate, template_of
from mmserve.httpserver.prompt.template.variables import template_variables
from mmserve.httpserver.prompt.turns import Turn, turns
from mmserve.processors.interface import Expansion
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest

_TAIL_CHARS = 200
"""End of the rendered text that is kept: longer than any marker of reasoning, with white space after it."""


class PromptBuilder:
    """One per HTTP worker. CPU work only; a long prompt takes milliseconds, so callers may use a thread."""

    def __init__(self, deployment: Deployment) -> None:
        """Reads tokenizer and chat template. Raises StartupError."""
        model = deployment.model
        source = template_of(model)
        self._max_model_len = deployment.max_model_len
        self._vocab_size = model.text.vocab_size
        self._image_token_id = model.image_token_id
        self._is_multimodal = model.vision is not None
        self._tokenizer = read_tokenizer(model)
        self._encoder: GuardedEncoder | None = None
        self._takes_strings = self._takes_parts = self._takes_late_system = False
        if source is not None:
            longest = self._max_model_len * self._tokenizer.longest_token
            template = ChatTemplate(source, self._tokenizer.special_tokens, prompt_chars=longest)
            self._takes_strings, self._takes_parts = template.takes_strings, template.takes_parts
            self._takes_late_system = template.takes_late_system
            self._encoder = GuardedEncoder(template, self._tokenizer, self._check_text, image_texts(model)[0])

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizers library's object, for decoding."""
        return self._tokenizer.raw

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for one token of output."""
        return self._max_model_len - 1

    def build(self, prompt: PromptInput, media: Sequence[MediaRef], leased: Sequence[LeasedItem]) -> Prompt:
        """``leased[i]`` is the lease of ``media[i]``. Raises InvalidRequest, ContextLengthExceeded."""
        if isinstance(prompt, WrittenPrompt):
            ids = self._written_ids(prompt)
            if not isinstance(prompt.content, str):
                self._check_ids(ids, prompt.param)
            return self._finished(ids, [], prompt.param)
        images = self._images_of(prompt, media)
        text, ids = self._encode(prompt, media, images, [item.expansion for item in leased])
        runs = [run for index in images for run in runs_of(index, leased[index])]
        return self._finished(ids, runs, "messages", text[-_TAIL_CHARS:])

    def token_ids(self, prompt: PromptInput, media: Sequence[MediaRef], expansions: Sequence[Expansion]) -> array[int]:
        """What ``build`` makes, also if it is too long, with the image token's id in the place of virtual ids.

        ``expansions[i]``: of ``media[i]``. Raises InvalidRequest, and ContextLengthExceeded for a text that is too
        long to be tokenized.
        """
        if isinstance(prompt, WrittenPrompt):
            return array("q", self._written_ids(prompt))
        images = self._images_of(prompt, media)
        _, ids = self._encode(prompt, media, images, expansions)
        rows = [run.rows for index in images for run in expansions[index].runs]
        found, copied = array("q"), 0
        for at, count in zip(self._run_places(ids, len(rows), "messages"), rows, strict=True):
            found.extend(ids[copied:at])
            found.extend([ids[at]] * count)
            copied = at + 1
        found.extend(ids[copied:])
        return found

    def turns(
        self, conversation: Conversation, media: Sequence[MediaRef], expansions: Sequence[Expansion]
    ) -> list[Turn]:
        """Which of ``token_ids`` come from which messages. Raises as that does."""
        rows = [run.rows for index in self._images_of(conversation, media) for run in expansions[index].runs]

        def encode(part: Conversation) -> EncodedText:
            return self._encode(part, media, self._images_of(part, media), expansions)

        def num_tokens(ids: Sequence[int]) -> int:
            num_runs = len([*_places(ids, self._image_token_id)])
            return len(ids) - num_runs + sum(rows[:num_runs])

        return turns(conversation, encode, num_tokens)

    def _images_of(self, conversation: Conversation, media: Sequence[MediaRef]) -> list[int]:
        """Indexes of the images in ``media``, in the order of the conversation."""
        parts = (part for message in conversation.messages for part in message.content)
        images = [part.index for part in parts if isinstance(part, MediaPart)]
        if images and not self._is_multimodal:
            raise InvalidRequest("this model takes no images", param=media[images[0]].param)
        return images

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of texts that an answer must not contain. Raises InvalidRequest, naming ``bad_words``."""
        return bad_word_ids(self._tokenizer.encode_within, words)

    def _written_ids(self, prompt: WrittenPrompt) -> Sequence[int]:
        """The client writes the whole prompt, so control tokens in it are meant."""
        if not isinstance(prompt.content, str):
            return prompt.content
        self._check_text(prompt.content, prompt.param)
        ids = self._tokenizer.encode(prompt.content)
        return self._tokenizer.with_special_tokens(ids) if prompt.add_special_tokens else ids

    def _encode(
        self,
        conversation: Conversation,
        media: Sequence[MediaRef],
        images: Sequence[int],
        expansions: Sequence[Expansion],
    ) -> EncodedText:
        """The text with the expansions of ``images`` in the place of the template's placeholders, and its ids."""
        if self._encoder is None:
            raise InvalidRequest("this model has no chat template, so it cannot take chat messages", param="messages")
        if not self._takes_late_system:
            conversation = replace(conversation, messages=fold_late_system(conversation.messages))
        continued = conversation.messages[-1] if conversation.continue_final_message else None
        try:
            variables = template_variables(conversation, self._content)
            texts = [expansions[index].text for index in images]
            text, ids = self._encoder.encode(variables, texts, _last_text(continued))
        except RecursionError:
            raise InvalidRequest("a tool or the arguments of a call are nested too deeply", param="messages") from None
        except PlacesMismatch as error:
            error.param = media[images[0]].param if images else "messages"
            raise
        return EncodedText(text, self._add_special_tokens(text, ids))

    def _add_special_tokens(self, text: str, ids: list[int]) -> list[int]:
        """As transformers: its processors add the bos token unless the template has written it; its tokenizers, used
        for text models, never add it."""
        bos = self._tokenizer.special_tokens.get("bos_token")
        written = not self._is_multimodal or (bos is not None and text.startswith(bos))
        return ids if written else self._tokenizer.with_special_tokens(ids)

    def _content(self, message: Message) -> Any:
        """A list of parts if the template accepts one and the content is not a single text; otherwise a string."""
        as_string = self._takes_strings and not self._is_multimodal and len(message.content) == 1
        if self._takes_parts and not as_string:
            return [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in message.content
            ]
        return "\n".join(part.text for part in message.content if isinstance(part, TextPart))

    def _finished(self, ids: Sequence[int], runs: Sequence[LeasedRun], param: str, tail: str = "") -> Prompt:
        """Replaces the n-th image token by the virtual ids of the conversation's n-th run.

        ``param``: the field to name if the prompt cannot be used. ``tail``: see Prompt.
        """
        if self._tokenizer.largest_id >= self._vocab_size:
            self._check_ids(ids, param)
        prompt, spans, copied = array("q"), [], 0
        for at, run in zip(self._run_places(ids, len(runs), param), runs, strict=True):
            prompt.extend(ids[copied:at])
            spans.append(run.span(len(prompt)))
            prompt.frombytes(run.virtual_ids())
            copied = at + 1
        prompt.extend(ids[copied:])
        if not prompt:
            raise InvalidRequest("the prompt is empty", param=param)
        if len(prompt) > self.max_prompt_tokens:
            raise self._too_long(len(prompt), param)
        return Prompt(prompt, tuple(spans), tail)

    def _run_places(self, ids: Sequence[int], num_runs: int, param: str) -> list[int]:
        """Positions of the image token, one for each run. Raises InvalidRequest for more or fewer."""
        positions = [*_places(ids, self._image_token_id)] if self._is_multimodal else []
        if len(positions) != num_runs:
            raise InvalidRequest(f"the prompt has {len(positions)} image tokens in place of {num_runs}", param=param)
        return positions

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        if not 0 <= min(ids, default=0) <= max(ids, default=0) < self._vocab_size:
            raise InvalidRequest("the prompt holds a token that the model does not have", param=param)

    def _check_text(self, text: str, param: str = "messages") -> None:
        """Before tokenizing a text that is too long in any case."""
        if len(text) > self._max_model_len * self._tokenizer.longest_token:
            raise self._too_long(len(text) // self._tokenizer.longest_token, param, "at least ")

    def _too_long(self, num_tokens: int, param: str, at_least: str = "") -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {at_least}{num_tokens} tokens, images included; the context is {self._max_model_len} "
            "tokens and must leave room for an answer",
            param=param,
            prompt_tokens=num_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
        )


def _places(ids: Sequence[int], wanted: int | None) -> Iterator[int]:
    """Positions of ``wanted``, found without a step in Python for each id."""
    at = -1
    with suppress(ValueError):
        while True:
            yield (at := ids.index(wanted, at + 1))


def _last_text(message: Message | None) -> str:
    """The text that the answer continues; empty without a message to continue. Raises InvalidRequest."""
    if message is None:
        return ""
    texts = [part.text.strip() for part in message.content if isinstance(part, TextPart)]
    if not texts or not texts[-1]:
        raise InvalidRequest("the last message has no text to continue", param="continue_final_message")
    return texts[-1]
