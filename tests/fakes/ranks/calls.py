"""GenerateCalls for tests: one builder with a default for every field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mmserve.httpserver.api.openai.chat.request import CHAT
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall, LeasedItem, Prompt
from mmserve.httpserver.conversation import Conversation, Message
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams


def generate_call(*messages: Message, **fields: Any) -> GenerateCall:
    """A validated request for 4 greedy tokens of the model ``stub``, as a protocol's ``parse`` returns it.

    ``fields``: any fields of GenerateCall, in place of the defaults. ``media`` must have a MediaRef for each MediaPart
    of the messages.
    """
    sampling = SamplingParams(max_tokens=4, temperature=0)
    prompts = (Conversation(messages),)
    call = GenerateCall("request", "stub", prompts, media=(), sampling=sampling, arrival_s=0.0)
    return msgspec.structs.replace(call, **fields)


def messages_of(call: GenerateCall) -> tuple[Message, ...]:
    """The messages of a call whose only prompt is a conversation."""
    (conversation,) = call.prompts
    assert isinstance(conversation, Conversation)
    return conversation.messages


def parse_chat(body: bytes | bytearray, model: ServedModel, arrival_s: float = 0.0) -> GenerateCall:
    """The body of a chat completion as a call."""
    return parse_body(CHAT, body, model, arrival_s).call


def build_prompt(prompts: PromptBuilder, call: GenerateCall, leased: Sequence[LeasedItem] = ()) -> Prompt:
    """The prompt of a call that has only one."""
    (prompt,) = call.prompts
    return prompts.build(prompt, call.media, leased)
