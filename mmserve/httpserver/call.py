"""The data of one request: what every protocol is parsed to and what the steps of the request path hand on."""

from __future__ import annotations

import random
import sys
import time
from array import array
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from mmserve.httpserver import conversation
from mmserve.httpserver.conversation import PromptInput
from mmserve.messages.cache import AllocItem, MediaRecord
from mmserve.messages.media import DEFAULT_PROCESSING, MediaSpan, Processing
from mmserve.messages.relay import Relay, Sampled
from mmserve.messages.sampling import SamplingParams
from mmserve.processors.interface import Expansion

AllocVersion = Literal["v1", "v2"]
"""How a request allocates its images: v1 one image after another, one RPC a call; v2 concurrently, one RPC a request.
Also the value of the metric label ``alloc``."""

_RANDOM = random.Random()  # seeded by the operating system


def new_request_id() -> str:
    """32 random hexadecimal digits: unique, not secret.

    Not from ``secrets``: a system call releases the interpreter's lock, and the event loop would have to wait for it.
    """
    return f"{_RANDOM.getrandbits(128):032x}"


class MediaRef(msgspec.Struct, frozen=True):
    """An image as the client named it; ``param`` is its place, e.g. ``messages[1].content[0].image_url.url``."""

    url: str
    param: str
    data: memoryview | None = None
    """Base64 text of a data: URL, a view of the request's body; ``url`` then ends with the comma before it."""
    content: bytes | None = None
    """The image's bytes, if already decoded from base64; ``url`` then ends with the comma before the base64 text."""
    uuid: str = ""
    """The client's name for the image. Without a ``url``, the client means the image that it sent under this name."""

    @property
    def is_named(self) -> bool:
        """True if the request has only the image's name."""
        return not self.url and bool(self.uuid)

    @property
    def scheme(self) -> str:
        """Scheme of the URL, in lower case."""
        return self.url[:8].partition(":")[0].lower()

    @property
    def is_inline(self) -> bool:
        """True if the image is part of the request's body."""
        return self.scheme == "data"

    @property
    def nbytes(self) -> int:
        """Length of the whole URL, roughly the amount of work to decode it."""
        return len(self.url) + len(self.data or self.content or b"")


class TokenView(msgspec.Struct, frozen=True):
    """What an answer shows of its tokens. ``token_ids``: the ids of prompt and answer, besides the text."""

    skip_special_tokens: bool = True
    include_stop: bool = False
    """The text ends with the stop string, or with the text of the stop token."""
    token_ids: bool = False


class Relayed(msgspec.Struct, frozen=True):
    """What a front has sent with the request. ``sampled``: the answer's tokens so far, from a server that has died."""

    relay: Relay
    sampled: tuple[Sampled, ...] = ()


class GenerateCall(msgspec.Struct, frozen=True):
    """A validated request: ``n`` answers to each of ``prompts``. ``sampling.max_tokens`` 0: the rest of the context.

    Choice ``i`` answers prompt ``i // n``.
    """

    request_id: str
    model: str
    prompts: tuple[PromptInput, ...]
    media: tuple[MediaRef, ...]
    sampling: SamplingParams
    arrival_s: float
    n: int = 1
    num_prompts: int = 1
    """Length of ``prompts``. A call whose prompts are dropped still tells it."""
    prompt_only: bool = False
    """No answer is generated. The first choice of each prompt brings ``sampling.prompt_logprobs`` as always."""
    pooling: bool = False
    """The answer to each prompt is its embedding. With ``prompt_only``."""
    priority: int = 0
    """See GenerateRequest."""
    echo: bool = False
    """Each choice begins with its prompt, which is a WrittenPrompt, and has the ``prompt_logprobs`` of it."""
    stop: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    """Texts that the answer must not contain. ``sampling.bad_words`` has their tokens once these are known."""
    view: TokenView = TokenView()
    client_request_id: str = ""
    """The client's own name for the request, which the answer's id repeats; need not be unique."""
    stream: bool = False
    timeout_s: float | None = None
    """From arrival to the end of the answer; None: the client sets no limit."""
    cache_salt: str = ""
    """Requests with different salts share neither cached images nor cached KV blocks."""
    image_options: str = ""
    """See ``Processing.options``."""
    http_request_id: str = ""
    """The id in the headers of the response, which errors repeat."""
    owner: str = ""
    """Name of the client's API key (``request/tenants``). Names of images are known to their owner alone."""
    grammar_param: str = ""
    """The field that ``sampling.grammar`` comes from."""
    fit_output: bool = False
    """The answer may be cut to the rest of the context; otherwise a larger max_tokens is an error."""
    timed: bool = False
    """The answer tells the time of each stage."""
    relayed: Relayed | None = None
    """Of a request that came from a front."""
    echo_nbytes: int = 0
    """Memory of what the protocol keeps of the request for its answer."""

    @property
    def num_choices(self) -> int:
        """Answers in all."""
        return self.n * self.num_prompts

    @property
    def created_s(self) -> int:
        """Seconds since 1970, as the answer says them: the front's, so that all its replicas say the same, or now."""
        return int(time.time()) if self.relayed is None else self.relayed.relay.created_s

    @property
    def processing(self) -> Processing:
        """Of the call's images."""
        return Processing(self.image_options, len(self.media))

    @property
    def response_id(self) -> str:
        """The ``id`` of the response's body."""
        return f"chatcmpl-{self.client_request_id or self.answer_id}"

    @property
    def answer_id(self) -> str:
        """What the answer's ids are made from: the request's id, or its id at the front, which all replicas repeat."""
        return self.request_id if self.relayed is None else self.relayed.relay.request_id


_REQUEST_NBYTES, _CHOICE_NBYTES = 10 * 1024, 10 * 1024
"""Objects of a request and of each of its choices that have about the same size in all: tasks, frames, queues."""
_MEDIA_NBYTES, _BIAS_NBYTES = 400, 160
"""An image and an entry of logit_bias, without their text and data."""
_TOKEN_ID_NBYTES = 40


def kept_nbytes(call: GenerateCall) -> int:
    """Memory that the call and its request's objects take: texts in the width that they are stored in, images, and the
    whole body if an image is a view of it. Without the prompts' token ids and the answer."""
    urls = [text for ref in call.media for text in (ref.url, ref.uuid)]
    bodies = {id(ref.data.obj): ref.data.obj for ref in call.media if ref.data is not None}
    return (
        _REQUEST_NBYTES
        + call.echo_nbytes
        + _CHOICE_NBYTES * call.num_choices
        + _MEDIA_NBYTES * len(call.media)
        + _BIAS_NBYTES * len(call.sampling.logit_bias)
        + sum(map(conversation.nbytes, call.prompts))
        + sum(map(sys.getsizeof, (*urls, *call.stop, *call.bad_words, call.cache_salt, call.image_options)))
        + _TOKEN_ID_NBYTES * _num_token_ids(call.sampling) * (1 + call.num_choices)  # as the grammar
        + sys.getsizeof(call.sampling.grammar) * call.num_choices  # the router keeps one for each choice
        + sum(len(ref.content or b"") for ref in call.media)
        + _TOKEN_ID_NBYTES * sum(len(each.token_ids) for each in (call.relayed.sampled if call.relayed else ()))
        + sum(len(cast(bytes, body)) for body in bodies.values())
    )


def _num_token_ids(sampling: SamplingParams) -> int:
    words = sum(2 + len(word) for word in sampling.bad_words)
    return len(sampling.stop_token_ids) + len(sampling.allowed_token_ids) + words


class MediaItem(msgspec.Struct, frozen=True):
    """One image after reading: its compressed bytes, the size in pixels from its header, its content key.

    ``stored``: the image as it is in the cache, if the client has sent its name in place of its bytes.
    """

    data: bytes
    width: int
    height: int
    key: bytes
    param: str
    processing: Processing = DEFAULT_PROCESSING
    loading_nbytes: int = 0
    """Estimated memory of its decoder, from its header."""
    counted: Expansion | None = None
    """What it becomes in the prompt, if a visual server had to be asked for that (``RowCounts``)."""
    name: bytes = b""
    """See named_images. The image gets this name once it is leased."""
    stored: AllocItem | None = None


class LeasedItem(msgspec.Struct, frozen=True):
    """One image in the arena, leased to the request."""

    record: MediaRecord
    expansion: Expansion
    """Of the image in the prompt."""
    processing: Processing = DEFAULT_PROCESSING
    decoded_nbytes: int = 0
    key: bytes = b""
    """Content key."""


@dataclass(frozen=True)
class Prompt:
    """int64 token ids, with virtual ids in the place of images, and the spans of those."""

    ids: array[int]
    spans: tuple[MediaSpan, ...] = ()
    tail: str = ""
    """The end of the rendered conversation, which may be the beginning of a thought."""
