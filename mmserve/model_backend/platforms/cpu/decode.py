"""Decode steps in one call of the C++ kernels: layers, output head, and the choice of tokens.

After a step the weights have taken the place of all else in the caches, so each line of Python and each operation of
torch in between waits for memory: beside the kernels a step of one token took 1.2 ms.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import numpy as np
import torch

from mmserve.model_backend.layers.rotary import Angles, Rotary
from mmserve.model_backend.platforms.cpu.attention import PagedCpuMetadata
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder, compile_decoder, step_of
from mmserve.model_backend.platforms.cpu.linear.matrix import Matrix
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling, numbers_of
from mmserve.model_backend.platforms.decode_graphs import Decoded, DecodeRows, GraphParts, Int64s
from mmserve.model_backend.platforms.sampling import Draw

_POSITIONS = 64
"""Angles of one row are computed for so many positions in a row at a time."""


class _Output(ctypes.Structure):
    _fields_ = (
        ("norm", c_void_p),
        ("head", Matrix),
        ("logits", c_void_p),
        ("vocab", c_int64),
        ("draws", c_void_p),
        ("chosen", c_void_p),
    )


class CompiledDecodes:
    """See ``platforms.decode_graphs.DecodeGraphs``. The numbers and tokens of the step's parts, to the bit.

    Keeps the addresses of the weights, as ``decoder`` does. Nothing has to be captured. ``norm``: of the norm before
    the head.
    """

    rungs: Sequence[int] = ()

    def __init__(
        self, kernels: ctypes.CDLL, parts: GraphParts, decoder: CompiledDecoder, norm: torch.Tensor, head: Matrix
    ) -> None:
        self._decode = kernels.mm_decode
        self._parts, self._decoder, self._head, self._norm = parts, decoder, head, norm
        self._angles = _RecentAngles(decoder.rotary)
        self._last_token: Int64s = parts.last_token.numpy()

    def decode(self, rows: DecodeRows, draws: Sequence[Draw], metadata: PagedCpuMetadata) -> Decoded | None:
        count = len(rows.sampling)
        if not count:
            return None
        ids = np.where(rows.token_ids >= 0, rows.token_ids, self._last_token[rows.slots])
        hidden = self._parts.model.embed(torch.from_numpy(ids))
        angles, wanted = self._angles.of(rows.positions), torch.from_numpy(rows.sampling)
        logits, chosen = torch.empty(count, self._head.out), torch.zeros(count, dtype=torch.int64)
        numbers = numbers_of(draws) if draws else None
        output = _Output(
            self._norm.data_ptr(),
            self._head,
            logits.data_ptr(),
            self._parts.vocab_size,
            None if numbers is None else ctypes.addressof(numbers),
            chosen.data_ptr(),
        )
        step = step_of(hidden, angles, self._parts.kv_cache, metadata, wanted)
        self._decode(self._decoder.layers, self._decoder.shape, ctypes.byref(step), ctypes.byref(output))
        read = torch.from_numpy(ids[rows.sampling])
        logits = logits[:, : self._parts.vocab_size]
        if not draws:
            return Decoded(logits, None, read)
        self._last_token[rows.slots[rows.sampling]] = np.maximum(chosen.numpy(), 0)
        return Decoded(logits, chosen, read)


class _RecentAngles:
    """Cosines and sines of a step's rows. One row alone mostly follows that of the step before."""

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._first = -1
        self._known: Angles | None = None
        """Of the positions from ``_first`` on."""

    def of(self, positions: Int64s) -> Angles:
        if len(positions) > 1:
            return self._rotary.angles(torch.from_numpy(positions)[None])
        first, index = divmod(int(positions[0]), _POSITIONS)
        if self._known is None or first != self._first:
            start = first * _POSITIONS
            self._first, self._known = first, self._rotary.angles(torch.arange(start, start + _POSITIONS)[None])
        cos, sin = self._known
        return cos[:, index : index + 1].contiguous(), sin[:, index : index + 1].contiguous()


def compile_decodes(kernels: ctypes.CDLL, parts: GraphParts, *, rounds: bool = False) -> CompiledDecodes | None:
    """None if the kernels cannot compute every part of this model's steps. ``rounds``: as in ``KernelOps``."""
    weights = parts.model.decoder_weights()
    if weights is None or not isinstance(parts.sampling, KernelSampling):
        return None
    decoder = compile_decoder(kernels, weights, rounds=rounds)
    if decoder is None or not isinstance(weights.head.method, PackedLinear):
        return None
    return CompiledDecodes(kernels, parts, decoder, weights.norm, Matrix.of(weights.head))
