"""Stubs of the services of an HTTP worker: media, leases and prompts without files, sockets or a cache server.

One token for each byte of text.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN, Deployment
from mmserve.httpserver.call import LeasedItem, MediaItem, MediaRef, Prompt
from mmserve.httpserver.conversation import Conversation, MediaPart, PromptInput, TextPart, WrittenPrompt
from mmserve.httpserver.mm_cache.named_images import names_of
from mmserve.httpserver.prompt.bad_words import bad_word_ids
from mmserve.httpserver.prompt.media_spans import runs_of
from mmserve.httpserver.prompt.turns import Turn
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord, NamedImage, StoredImage
from mmserve.messages.media import Handle, Processing
from mmserve.processors.interface import Expansion, Run
from mmserve.runtime.errors import MediaError

EOS = 256
IMAGE_TOKENS = 4
EXPANSION = Expansion("<image>", (Run(IMAGE_TOKENS, (1, 1, IMAGE_TOKENS)),))
VOCAB = 257


def byte_tokenizer() -> Tokenizer:
    """Token id = byte value; 256 is the special token that ends a text."""
    to_symbol = _symbols()
    tokenizer = Tokenizer(models.BPE(vocab={to_symbol[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def _symbols() -> list[str]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def make_deployment(run_dir: str, *, vision: bool = True, **config: object) -> Deployment:
    """A deployment of no real model, named ``stub`` and kept at /models/stub-7b."""
    text = TextSpec(
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerSpec(),),
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        vocab_size=VOCAB,
        max_position=512,
        rms_eps=1e-5,
    )
    tower = ClipVision(
        image_size=8,
        patch_size=4,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        layer_norm_eps=1e-5,
        activation="gelu",
        feature_layer=-2,
        select_strategy="default",
        projector_activation="gelu",
        projector_bias=True,
    )
    return Deployment(
        config=Config(**({"shutdown_timeout": 5.0} | config)),  # type: ignore[arg-type]
        model=ModelSpec(
            family="llava" if vision else "llama",
            path="/models/stub-7b",
            text=text,
            vision=tower if vision else None,
            eos_token_ids=(EOS,),
            image_token_id=EOS if vision else None,
        ),
        served_name="stub",
        device="cpu",
        dtype="float32",
        max_model_len=512,
        kv_tokens=64 * 16,
        arena_nbytes=1 << 16,
        run_dir=run_dir,
        hash_seed=1,
        url="http://127.0.0.1:0",
        version="1.2.3",
    )


class StubMedia:
    """The bytes of an image are its URL."""

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        for ref in refs:
            if "broken" in ref.url:
                raise MediaError("cannot read the image", param=ref.param)
        return [MediaItem(ref.url.encode(), 8, 8, ref.url.encode(), ref.param) for ref in refs]


class StubLeases:
    """Leases any image. ``held`` and ``released`` are lease ids in order."""

    def __init__(self, state: ItemState = "write") -> None:
        self.state = state
        self.held: list[str] = []
        self.released: list[str] = []
        self.names: dict[bytes, NamedImage] = {}
        self.stored: dict[bytes, StoredImage] = {}
        """What ``look_up`` answers, by key."""
        self.gate = asyncio.Event()
        """``hold`` waits for it before it yields."""
        self.gate.set()

    @asynccontextmanager
    async def hold(self, request_id: str, items: Sequence[MediaItem]) -> AsyncIterator[list[LeasedItem]]:
        generation = len(self.held) + 1
        self.held.append(request_id)
        try:
            await self.gate.wait()
            specs = [AllocItem(item.key, IMAGE_TOKENS, len(item.data), 1) for item in items]
            self.names |= names_of(items, specs)
            yield [self._leased(generation, index, item) for index, item in enumerate(items)]
        finally:
            self.released.append(request_id)

    def expansions(self, items: Sequence[MediaItem]) -> list[Expansion]:
        return [EXPANSION for _ in items]

    def settings_digest(self, processing: Processing) -> bytes:
        return processing.options.encode()

    async def named(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]:
        return [self.names.get(name) for name in names]

    def alloc_items(self, items: Sequence[MediaItem], expansions: Sequence[Expansion]) -> list[AllocItem]:
        pairs = zip(items, expansions, strict=True)
        return [AllocItem(item.key, each.num_rows, len(item.data), 1) for item, each in pairs]

    async def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]:
        return [self.stored.get(item.key, StoredImage()) for item in items]

    def _leased(self, generation: int, index: int, item: MediaItem) -> LeasedItem:
        handle = Handle(generation, 64 * index, len(item.data))
        data = None if self.state == "hit" else handle
        start = FIRST_VIRTUAL_TOKEN + IMAGE_TOKENS * index
        return LeasedItem(MediaRecord(index, start, self.state, data, handle), EXPANSION)


class StubPrompts:
    """All text of the conversation as bytes, with the virtual ids of images between."""

    def build(self, prompt: PromptInput, media: Sequence[MediaRef], leased: Sequence[LeasedItem]) -> Prompt:
        if isinstance(prompt, WrittenPrompt):
            return Prompt(_written_ids(prompt))
        ids, spans = array("q"), []
        for message in prompt.messages:
            for part in message.content:
                if isinstance(part, TextPart):
                    ids.extend(part.text.encode())
                elif isinstance(part, MediaPart):
                    for run in runs_of(part.index, leased[part.index]):
                        spans.append(run.span(len(ids)))
                        ids.frombytes(run.virtual_ids())
        return Prompt(ids, tuple(spans))

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return bad_word_ids(lambda text: list(text.encode()), words)

    def token_ids(self, prompt: PromptInput, media: Sequence[MediaRef], expansions: Sequence[Expansion]) -> array[int]:
        if isinstance(prompt, WrittenPrompt):
            return _written_ids(prompt)
        ids = array("q")
        for message in prompt.messages:
            for part in message.content:
                is_text = isinstance(part, TextPart)
                ids.extend(part.text.encode() if is_text else [EOS] * expansions[part.index].num_rows)
        return ids

    def turns(
        self, conversation: Conversation, media: Sequence[MediaRef], expansions: Sequence[Expansion]
    ) -> list[Turn]:
        """One turn of all messages."""
        return [Turn(0, len(self.token_ids(conversation, media, expansions)), range(len(conversation.messages)))]


def _written_ids(prompt: WrittenPrompt) -> array[int]:
    return array("q", list(prompt.content.encode() if isinstance(prompt.content, str) else prompt.content))
