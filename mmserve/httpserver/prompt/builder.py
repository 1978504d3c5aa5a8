"""Builds the prompt: messages and leased images to token ids, with virtual ids and spans for images.

Control tokens and image placeholders come only from the chat template; user text never becomes one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from mmserve.config.deployment import Deployment
from mmserve.httpserver.call import GenerateCall, LeasedItem, MediaPart, Message, Prompt, TextPart
from mmserve.httpserver.prompt.chat_template import ChatTemplate, Conversation, template_source
from mmserve.httpserver.prompt.guarded_encoding import GuardedEncoder
from mmserve.httpserver.prompt.media_spans import span_of, virtual_ids
from mmserve.httpserver.prompt.tokenizer import ChatTokenizer
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest


class PromptBuilder:
    """One per HTTP worker. CPU work only; a long prompt takes milliseconds, so callers may use a thread."""

    def __init__(self, deployment: Deployment) -> None:
        """Reads tokenizer and chat template. Raises StartupError."""
        model = deployment.model
        checkpoint = Path(model.path)
        source = template_source(checkpoint)
        self._max_model_len = deployment.max_model_len
        self._vocab_size = model.text.vocab_size
        self._image_token_id = model.image_token_id
        self._is_multimodal = model.vision is not None
        self._tokenizer = ChatTokenizer(checkpoint, source or "", placeholder=model.image_token_id)
        self._encoder: GuardedEncoder | None = None
        self._takes_strings = self._takes_parts = False
        if source is not None:
            longest = self._max_model_len * self._tokenizer.longest_token
            template = ChatTemplate(source, self._tokenizer.special_tokens, prompt_chars=longest)
            self._takes_strings, self._takes_parts = template.takes_strings, template.takes_parts
            self._encoder = GuardedEncoder(template, self._tokenizer, self._check_text)

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizers library's object, for decoding."""
        return self._tokenizer.raw

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for one token of output."""
        return self._max_model_len - 1

    def build(self, call: GenerateCall, leased: Sequence[LeasedItem]) -> Prompt:
        """``leased[i]`` is the lease of ``call.media[i]``. Raises InvalidRequest, ContextLengthExceeded."""
        images = [part.index for message in call.messages for part in message.content if isinstance(part, MediaPart)]
        if images and not self._is_multimodal:
            raise InvalidRequest("this model takes no images", param=call.media[images[0]].param)
        if self._encoder is None:
            raise InvalidRequest("this model has no chat template, so it cannot take chat messages", param="messages")
        text, ids = self._encoder.encode({"messages": self._conversation(call.messages)})
        ids = self._add_special_tokens(text, ids)
        prompt = self._with_images(ids, [(index, leased[index]) for index in images], call)
        self._check_length(len(prompt.ids))
        return prompt

    def _add_special_tokens(self, text: str, ids: list[int]) -> list[int]:
        """As transformers: its processors add the bos token unless the template has written it; its tokenizers, used
        for text models, never add it."""
        bos = self._tokenizer.special_tokens.get("bos_token")
        written = not self._is_multimodal or (bos is not None and text.startswith(bos))
        return ids if written else self._tokenizer.with_special_tokens(ids)

    def _conversation(self, messages: Sequence[Message]) -> Conversation:
        return [{"role": message.role, "content": self._content(message)} for message in messages]

    def _content(self, message: Message) -> Any:
        """A list of parts if the template accepts one and the content is not a single text; otherwise a string."""
        as_string = self._takes_strings and not self._is_multimodal and len(message.content) == 1
        if self._takes_parts and not as_string:
            return [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in message.content
            ]
        return "\n".join(part.text for part in message.content if isinstance(part, TextPart))

    def _with_images(self, ids: list[int], images: list[tuple[int, LeasedItem]], call: GenerateCall) -> Prompt:
        """Replaces the n-th placeholder by the virtual ids of the conversation's n-th image."""
        positions = [at for at, id in enumerate(ids) if id == self._image_token_id] if self._is_multimodal else []
        if len(positions) != len(images):
            param = call.media[images[0][0]].param if images else "messages"
            raise InvalidRequest(
                f"the model's chat template has places for {len(positions)} of {len(images)} images here", param=param
            )
        if max(ids, default=0) >= self._vocab_size:
            raise InvalidRequest("the prompt holds a token that the model does not have", param="messages")
        prompt, spans, copied = array("q"), [], 0
        for at, (index, item) in zip(positions, images, strict=True):
            prompt.extend(ids[copied:at])
            spans.append(span_of(len(prompt), index, item))
            prompt.frombytes(virtual_ids(item))
            copied = at + 1
        prompt.extend(ids[copied:])
        return Prompt(prompt, tuple(spans))

    def _check_text(self, text: str) -> None:
        """Before tokenizing a text that is too long in any case."""
        if len(text) > self._max_model_len * self._tokenizer.longest_token:
            raise self._too_long(f"at least {len(text) // self._tokenizer.longest_token}")

    def _check_length(self, num_tokens: int) -> None:
        if num_tokens > self.max_prompt_tokens:
            raise self._too_long(str(num_tokens))

    def _too_long(self, num_tokens: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {num_tokens} tokens, images included; the context is {self._max_model_len} tokens "
            "and must leave room for an answer",
            param="messages",
        )
