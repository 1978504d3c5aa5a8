"""Compares whole decoders, computed in one call of the C++ kernels, with their operations one by one."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import torch
from msgspec.structs import replace

from mmserve.checkpoint.spec import LayerSpec, Rope, TextSpec
from mmserve.model_backend.attention.interface import CAUSAL, AttentionInput, AttentionSpec, Mask, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import LayerFinisher
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.models.decoder import Decoder
from mmserve.model_backend.models.interface import DeepStackRows
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.decode import compile_decodes
from mmserve.model_backend.platforms.cpu.decoder import compile_decoder
from mmserve.model_backend.platforms.cpu.linear.packing import KernelLinear
from mmserve.model_backend.platforms.cpu.ops import KernelOps
from mmserve.model_backend.platforms.cpu.product_checks import random
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling
from mmserve.model_backend.platforms.decode_graphs import DecodeRows, GraphParts
from mmserve.model_backend.platforms.sampling import Draw

_WINDOW = 7
MASKS = (CAUSAL, Mask(window=_WINDOW), Mask(whole_images=True), Mask(window=_WINDOW, whole_images=True))
HEADS = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, masks=MASKS)
_HIDDEN = HEADS.num_heads * HEADS.head_dim
_VOCAB, TOKENS, BLOCK = 16, 20, PagedCpuAttention.block_sizes[0]


def right_decoder(kernels: ctypes.CDLL) -> bool:
    """All layers in one call give the bits of the layers one by one, whose operations the other checks compare."""
    backend = PagedCpuAttention(kernels, HEADS)
    model = _tiny_decoder(kernels, backend)
    weights = model.decoder_weights()
    if weights is None or (compiled := compile_decoder(kernels, weights)) is None:
        return False
    step, limits = prompt()
    metadata = backend.builder(limits).build(step)
    positions, last = torch.arange(TOKENS)[None], torch.tensor([TOKENS - 1])
    deepstack = DeepStackRows(torch.tensor([3, 0, TOKENS - 1]), random(2, 3, _HIDDEN, seed=1))
    results = []
    for executor in (compiled, model):
        cache = torch.zeros(len(weights.layers), *backend.kv_shape(limits.max_blocks, BLOCK))
        hidden = random(TOKENS, _HIDDEN)
        results.append((executor.forward(hidden, positions, cache, metadata, last, deepstack), cache))
    (found, found_cache), (expected, expected_cache) = results
    return torch.equal(found, expected) and torch.equal(found_cache, expected_cache)


def right_decode(kernels: ctypes.CDLL) -> bool:
    """A decode step in one call gives the bits and the token of its parts."""
    backend, sampling = PagedCpuAttention(kernels, HEADS), KernelSampling(kernels)
    model, limits = _tiny_decoder(kernels, backend), StepLimits(1, 1, 2, BLOCK)
    at, token, one = np.array([TOKENS - 1]), np.array([7]), np.array([1])
    draw = Draw(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, key=0x123456789ABCDEF0)
    rows = DecodeRows(np.array([0]), token, at, sampling=np.array([0]), draws=[draw])
    metadata = backend.builder(limits).build(AttentionInput(rows.slots, at, one, np.array([[1, 0]]), at - BLOCK))

    def cache() -> torch.Tensor:
        return random(len(model.layers), *backend.kv_shape(limits.max_blocks, BLOCK), seed=2)

    parts = GraphParts(
        model, backend, cache(), torch.zeros(2, dtype=torch.int64), sampling, TpGroup(), (1,), _VOCAB, torch.float32
    )
    if (compiled := compile_decodes(kernels, parts)) is None:
        return False
    found, hidden = compiled.decode(rows, metadata), model.embed(torch.from_numpy(token))
    expected = model.logits(model.forward(hidden, torch.from_numpy(at)[None], cache(), metadata, None))
    if found is None or found.logits is None or found.tokens is None or expected is None:
        return False
    chosen = sampling.choose(expected, [draw], may_ban=False)
    return torch.equal(found.logits, expected) and torch.equal(found.tokens, chosen)


def _tiny_decoder(kernels: ctypes.CDLL, backend: PagedCpuAttention) -> Decoder:
    near = Rope(fraction=0.5)
    spec = TextSpec(
        hidden_size=_HIDDEN,
        intermediate_size=32,
        layers=(
            LayerSpec(rope=near),
            LayerSpec(rope=None, window=_WINDOW, whole_images=True),
            LayerSpec(rope=replace(near, theta=1e6)),
        ),
        num_heads=HEADS.num_heads,
        num_kv_heads=HEADS.num_kv_heads,
        head_dim=HEADS.head_dim,
        vocab_size=_VOCAB,
        max_position=TOKENS,
        rms_eps=1e-5,
        qkv_bias=True,
        qk_norm=True,
    )
    float32, device = torch.float32, torch.device("cpu")
    make = partial(KernelLinear, kernels)
    context = LayerContext(KernelOps(kernels), make, make, float32, device, TpGroup())
    rotary = Rotary(spec.layers, spec.head_dim, float32, device)
    model = Decoder(spec, backend, rotary, context=context)
    finisher = LayerFinisher(model.modules())
    for seed, (name, target) in enumerate(model.targets().items()):
        if target is not None:
            target.into.copy_(random(*target.into.shape, seed=seed) / 8)
            finisher.loaded(name)
    return model


def prompt() -> tuple[AttentionInput, StepLimits]:
    """One sequence of ``TOKENS`` with an image, in blocks that are not in order."""
    tables, positions = np.array([[1, 0]]), np.arange(TOKENS)
    slot_mapping = tables[0, positions // BLOCK] * BLOCK + positions % BLOCK
    one, zero = np.array([TOKENS]), np.array([0])
    image_ends = np.where((positions >= 3) & (positions < 18), 18, positions + 1)
    return AttentionInput(zero, zero, one, tables, slot_mapping, image_ends), StepLimits(TOKENS, 1, 2, BLOCK)
