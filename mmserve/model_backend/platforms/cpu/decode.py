"""Decode steps in one call of the C++ kernels: from the ids of the rows to their next tokens.

After a step the weights have taken the place of all else in the caches, so each line of Python and each operation of
torch in between waits for memory. So what a step reads and writes stays at the same addresses, and all that can be
known earlier is written before the step's plan arrives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import NamedTuple

import numpy as np
import torch

from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.models.interface import DecoderWeights
from mmserve.model_backend.platforms.cpu.attention import PagedCpuMetadata
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder, Step, compile_decoder
from mmserve.model_backend.platforms.cpu.linear.matrix import Matrix
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling
from mmserve.model_backend.platforms.decode_graphs import Decoded, DecodeRows, GraphParts
from mmserve.model_backend.platforms.sampling import NUM_DRAW_NUMBERS

_FIRST_POSITIONS = 1024
"""So many positions have their angles from the first step on. Their number is doubled when it is too small."""
_MORE_POSITIONS = 8192
"""At most so many more than a step needs, which take some 15 ms to compute."""
_MAX_LOGITS_KEPT = 1 << 20
"""Room for more is given back after each step."""


class _Tokens(ctypes.Structure):
    _fields_ = (
        ("embedding", Matrix),
        ("scale", c_float),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("ropes", c_int64),
        ("num_positions", c_int64),
        *((name, c_void_p) for name in ("given", "slots", "positions", "last", "read")),
    )


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

    Keeps the addresses of the weights, as ``decoder`` does. Nothing has to be captured.
    """

    rungs: Sequence[int] = ()

    def __init__(
        self, kernels: ctypes.CDLL, parts: GraphParts, decoder: CompiledDecoder, weights: DecoderWeights
    ) -> None:
        self._decode = kernels.mm_decode
        self._parts, self._decoder, self._weights = parts, decoder, weights
        head = Matrix.of(weights.head)
        self._logits_shape = head.out, parts.vocab_size
        self._step = Step(kv=parts.kv_cache.data_ptr(), kv_stride=parts.kv_cache.stride(0) * parts.kv_cache.itemsize)
        self._tokens = _Tokens(
            embedding=Matrix.of(weights.embedding),
            scale=1.0 if weights.embedding_scale is None else weights.embedding_scale,
            last=parts.last_token.data_ptr(),
        )
        self._output = _Output(norm=weights.norm.data_ptr(), head=head, vocab=parts.vocab_size)
        self._arguments = (decoder.layers, decoder.shape, *map(ctypes.byref, (self._step, self._tokens, self._output)))
        self._angles = _AngleTable(decoder.rotary)
        self._memory = _StepMemory(0, *self._logits_shape)
        self._prepared: _Prepared | None = None

    def prepare(self, rows: DecodeRows, metadata: PagedCpuMetadata) -> None:
        self._prepared = None  # until all is written
        step, tokens, output = self._step, self._tokens, self._output
        if len(rows.slots) != len(self._memory.slots):
            self._memory = _StepMemory(len(rows.slots), *self._logits_shape)
            self._memory.describe(step, tokens, output)
        if self._angles.cover(max(rows.positions.tolist())):
            self._angles.describe(tokens)
        self._memory.write(rows, output)
        step.num_logits = len(rows.sampling)
        step.num_tiles, step.table_stride = len(metadata.tiles), metadata.block_tables.shape[1]
        step.tiles, step.block_tables, step.slot_mapping = (each.data_ptr() for each in metadata[:3])
        self._prepared = _Prepared(rows, metadata, self._memory.results(rows))

    def decode(self, rows: DecodeRows, metadata: PagedCpuMetadata) -> Decoded | None:
        if self._prepared is None or self._prepared.rows is not rows:
            if not len(rows.sampling):
                return None
            self.prepare(rows, metadata)
        assert self._prepared is not None
        decoded = self._prepared.decoded
        if decoded.logits is None:
            decoded = decoded._replace(logits=self._memory.add_logits(self._output, len(rows.sampling)))
        self._decode(*self._arguments)
        return decoded


class _Prepared(NamedTuple):
    """A step whose numbers and addresses the kernels have."""

    rows: DecodeRows
    metadata: PagedCpuMetadata
    decoded: Decoded
    """Without logits, if their memory is not kept."""


class _StepMemory:
    """What steps of so many rows read and write, at addresses that stay."""

    def __init__(self, rows: int, num_logits: int, vocab_size: int) -> None:
        self._given, self.slots, self._positions, self._sampling = np.zeros((4, rows), dtype=np.int64)
        self._draws = np.zeros((rows, NUM_DRAW_NUMBERS))
        self._chosen, self._read = torch.zeros(2, rows, dtype=torch.int64)
        self._num_logits, self._vocab_size = num_logits, vocab_size
        self._logits = torch.empty(rows, num_logits) if rows * num_logits <= _MAX_LOGITS_KEPT else None

    def describe(self, step: Step, tokens: _Tokens, output: _Output) -> None:
        """Write the addresses, but for those that differ from step to step."""
        step.rows, step.logits_indices = len(self.slots), self._sampling.ctypes.data
        tokens.given, tokens.slots = self._given.ctypes.data, self.slots.ctypes.data
        tokens.positions, tokens.read = self._positions.ctypes.data, self._read.data_ptr()
        output.chosen = self._chosen.data_ptr()
        output.logits = None if self._logits is None else self._logits.data_ptr()

    def write(self, rows: DecodeRows, output: _Output) -> None:
        """What a step reads."""
        self._given[:], self.slots[:], self._positions[:] = rows.token_ids, rows.slots, rows.positions
        self._sampling[: len(rows.sampling)] = rows.sampling
        if rows.draws:
            self._draws[: len(rows.draws)] = [draw.numbers for draw in rows.draws]
        output.draws = self._draws.ctypes.data if rows.draws else None

    def results(self, rows: DecodeRows) -> Decoded:
        """Where those of a step will be. Without logits, if their memory is not kept."""
        count = len(rows.sampling)
        logits = None if self._logits is None else self._logits[:count, : self._vocab_size]
        return Decoded(logits, self._chosen[:count] if rows.draws else None, self._read[:count])

    def add_logits(self, output: _Output, count: int) -> torch.Tensor:
        """Memory for one step."""
        logits = torch.empty(count, self._num_logits)
        output.logits = logits.data_ptr()
        return logits[:, : self._vocab_size]


class _AngleTable:
    """Cosines and sines of all positions up to some number, where rows look theirs up.

    A position takes 8 bytes for each pair of a head and each rope: with SmolLM2-135M 256 bytes, beside 46 KB of keys
    and values in float32.
    """

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._num_positions = 0
        self._cos = self._sin = torch.empty(0)

    def cover(self, position: int) -> bool:
        """Extend the table to this position. True if it has changed."""
        if position < self._num_positions:
            return False
        start, power = self._num_positions, max(_FIRST_POSITIONS, 1 << position.bit_length())
        end = min(power, (position // _MORE_POSITIONS + 1) * _MORE_POSITIONS)
        cos, sin = self._rotary.angles(torch.arange(start, end)[None])
        if start:
            cos, sin = torch.cat((self._cos, cos), dim=1), torch.cat((self._sin, sin), dim=1)
        self._cos, self._sin, self._num_positions = cos.contiguous(), sin.contiguous(), end
        return True

    def describe(self, tokens: _Tokens) -> None:
        """Write the addresses and sizes."""
        tokens.cos, tokens.sin = self._cos.data_ptr(), self._sin.data_ptr()
        tokens.ropes, tokens.num_positions, _ = self._cos.shape


def compile_decodes(kernels: ctypes.CDLL, parts: GraphParts, *, rounds: bool = False) -> CompiledDecodes | None:
    """None if the kernels cannot compute every part of this model's steps. ``rounds``: as in ``KernelOps``."""
    weights = parts.model.decoder_weights()
    if weights is None or not isinstance(parts.sampling, KernelSampling):
        return None
    decoder = compile_decoder(kernels, weights, rounds=rounds)
    ends = (weights.embedding, weights.head)
    if decoder is None or not all(isinstance(end.method, PackedLinear) for end in ends):
        return None
    return CompiledDecodes(kernels, parts, decoder, weights)
