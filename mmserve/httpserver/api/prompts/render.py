"""``/v1/chat/completions/render``: what a chat completion would be asked, without asking it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
from fastapi import APIRouter
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.openai.chat.request import CHAT
from mmserve.httpserver.api.openai.fields import ChatRequest
from mmserve.httpserver.api.openapi import add_protocol_route
from mmserve.httpserver.api.prompts.prompt_requests import admitted
from mmserve.httpserver.api.protocol import Protocol
from mmserve.httpserver.call import GenerateCall, kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.conversation import Conversation
from mmserve.httpserver.media.local import decode_small_images
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.prompt.turns import Turn
from mmserve.httpserver.request.look_up import look_up
from mmserve.httpserver.request.path import ReadImage
from mmserve.httpserver.sampling_defaults import SamplingDefaults
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.cache import StoredImage, StoredState

_TOKEN_NBYTES = 120
"""Memory of one token: its id, its text, and the JSON of both."""
_FROM_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SHOWN = (*_FROM_DEFAULTS, "presence_penalty", "frequency_penalty", "min_tokens")


class Part(msgspec.Struct, omit_defaults=True):
    """Consecutive tokens of the prompt: a text, or rows of an image. ``start``: place of the first token."""

    start: int
    tokens: int
    text: str | None = None
    image: int | None = None


class RenderedTurn(msgspec.Struct):
    """Consecutive tokens of the messages with these indexes. Without indexes, the chat template added the tokens."""

    start: int
    tokens: int
    messages: list[int]
    roles: list[str]


class RenderedImage(msgspec.Struct):
    """``tokens``: in the prompt, in all; ``grids``: (time, height, width) of each run of them; ``key``: of its content
    in the cache, which equal images share. ``stored``: what is in the arena now: nothing (absent), its bytes, or its
    embedding."""

    width: int
    height: int
    tokens: int
    grids: list[list[int]]
    key: str
    stored: StoredState


class Effective(msgspec.Struct):
    """``source``: request, generation_config (of the checkpoint), or default."""

    value: Any
    source: str


class Place(msgspec.Struct):
    """From the first to the last token of an image, text between its runs included."""

    offset: int
    length: int


class Features(msgspec.Struct):
    """Keys and places of the images, by "image", as vLLM names them and llm-d reads them. The same as in KV events."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[Place]]


class Rendered(msgspec.Struct):
    """``token_ids``: with the placeholder's id for every token of an image. ``cached_tokens``: of the prompt, in the
    prefix cache now."""

    model: str
    num_tokens: int
    max_model_len: int
    cached_tokens: int
    turns: list[RenderedTurn]
    parts: list[Part]
    images: list[RenderedImage]
    sampling: dict[str, Effective]
    token_ids: list[int]
    features: Features | None
    """Of a prompt with images."""


@dataclass(frozen=True)
class _Render:
    """``given``: fields of the body that are not null."""

    call: GenerateCall
    given: frozenset[str]


def parse_render(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> _Render:
    """See ``protocol.Parse``."""
    call = CHAT.parse(body, split_urls, model, arrival_s).call
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    return _Render(call, frozenset(name for name, value in fields.items() if bytes(value) != b"null"))


RENDER = Protocol(
    path="/v1/chat/completions/render",
    name="render",
    description="The prompt of a chat completion, its images, and what sampling applies; nothing is generated.",
    parse=parse_render,
    body_type=ChatRequest,
    answer_type=Rendered,
)


def render_routes(context: WorkerContext) -> APIRouter:
    """The route is admitted and counted as requests for an answer are."""
    router = APIRouter()

    async def render(request: Request) -> Response:
        async with admitted(context, RENDER, request) as (parsed, resources):
            call = decode_small_images(context.tenants.own(parsed.call, request.scope["state"]["key"]))
            given = parsed.given
            del parsed  # its call refers to the body
            resources.hold(kept_nbytes(call))
            path, model = context.path, context.model
            (ids,), images, expansions = await path.token_ids(call, resources)
            resources.hold(kept_nbytes(call) + _TOKEN_NBYTES * len(ids))
            present = await look_up(path, call, ids, images, model.image_token_id)
            (prompt,) = call.prompts
            assert isinstance(prompt, Conversation), "a chat completion has messages"

            def answer() -> bytes:
                turns = path.prompts.turns(prompt, call.media, expansions)
                parts = prompt_parts(ids, model.image_token_id, images, turns, path.vocabulary)
                return msgspec.json.encode(
                    Rendered(
                        model=call.model,
                        num_tokens=len(ids),
                        max_model_len=model.max_model_len,
                        cached_tokens=present.cached_tokens,
                        turns=[_turn(turn, prompt) for turn in turns],
                        parts=parts,
                        images=[_image(*pair) for pair in zip(images, present.images, strict=True)],
                        sampling=effective_sampling(call, given, model, len(ids)),
                        token_ids=list(ids),
                        features=features_of(parts, [image.item.key for image in images]),
                    )
                )

            body = await path.prompt_threads.run(answer)
        return Response(body, media_type="application/json")

    add_protocol_route(router, RENDER, render, "tokens")
    return router


def _turn(turn: Turn, conversation: Conversation) -> RenderedTurn:
    roles = [conversation.messages[index].role for index in turn.messages]
    return RenderedTurn(turn.start, turn.end - turn.start, list(turn.messages), roles)


def _image(image: ReadImage, stored: StoredImage) -> RenderedImage:
    return RenderedImage(*image[:3], [list(grid) for grid in image.grids], image.item.key.hex(), stored.state)


def features_of(parts: Sequence[Part], keys: Sequence[bytes]) -> Features | None:
    """``keys``: of the images."""
    runs: dict[int, list[Part]] = {}
    for part in parts:
        if part.image is not None:
            runs.setdefault(part.image, []).append(part)
    if not runs:
        return None
    places = [Place(of[0].start, of[-1].start + of[-1].tokens - of[0].start) for of in runs.values()]
    return Features({"image": [keys[index].hex() for index in runs]}, {"image": places})


def prompt_parts(
    ids: Sequence[int],
    image_token_id: int | None,
    images: Sequence[ReadImage],
    turns: Sequence[Turn],
    vocabulary: Vocabulary,
) -> list[Part]:
    """The prompt's texts and images in order. Images whose rows stand next to each other are parts of their own, and no
    text goes on from one turn into the next."""
    runs = [(index, height * width * time) for index, image in enumerate(images) for time, height, width in image.grids]
    starts = frozenset(turn.start for turn in turns)
    parts, start, turn = [], 0, 0

    def kind(place: tuple[int, int]) -> tuple[bool, int]:
        nonlocal turn
        turn += place[0] in starts
        return place[1] == image_token_id, turn

    for (is_image, _), group in groupby(enumerate(ids), key=kind):
        tokens = [token_id for _, token_id in group]
        end = start + len(tokens)
        if not is_image:
            parts.append(Part(start, len(tokens), text=vocabulary.decode(tokens)))
        while is_image and start < end and runs:
            index, rows = runs.pop(0)
            parts.append(Part(start, rows, image=index))
            start += rows
        start = end
    return parts


def effective_sampling(
    call: GenerateCall, given: frozenset[str], model: ServedModel, num_tokens: int
) -> dict[str, Effective]:
    """What applies, and where each value comes from."""
    plain = SamplingDefaults()

    def source(name: str) -> str:
        if name in given:
            return "request"
        is_checkpoints = getattr(model.sampling_defaults, name, None) != getattr(plain, name, None)
        return "generation_config" if is_checkpoints else "default"

    found = {name: Effective(getattr(call.sampling, name), source(name)) for name in _SHOWN}
    of_length = next((name for name in ("max_completion_tokens", "max_tokens") if name in given), "max_tokens")
    found["max_tokens"] = Effective(call.sampling.max_tokens or model.max_model_len - num_tokens, source(of_length))
    found["seed"] = Effective(
        call.sampling.seed if "seed" in given or not call.sampling.temperature else None, source("seed")
    )
    found["stop"] = Effective(list(call.stop), source("stop"))
    found["stop_token_ids"] = Effective(
        list(call.sampling.ending_token_ids), "request" if {"stop_token_ids", "ignore_eos"} & given else "default"
    )
    found["grammar"] = Effective(bool(call.sampling.grammar), "request" if call.sampling.grammar else "default")
    return found
