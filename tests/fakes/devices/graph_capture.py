"""In place of a GPU's capture: the work is kept, and done again at each replay, on what its tensors hold then."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from mmserve.config.fields import Quantization
from mmserve.model_backend.attention.interface import (
    CAUSAL,
    UNTURNED,
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    Mask,
    StepLimits,
)
from mmserve.model_backend.attention.sdpa import SdpaAttention, SdpaMetadata
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.grouped_experts import ExpertsShape
from mmserve.model_backend.layers.moe import route
from mmserve.model_backend.platforms.cuda.experts.grouped import StackedExperts
from mmserve.model_backend.platforms.cuda.graphs.capture import Captured
from mmserve.model_backend.platforms.cuda.graphs.decode import CapturedDecodes
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.platforms.sampling import TorchSampling
from mmserve.model_backend.transfers import Transfers
from tests.fakes.devices.late_device import LateDevice, LatePlatform

T = TypeVar("T")


class Recorder:
    """See ``cuda.graphs.capture.Capture``, for work that makes a tuple of tensors. ``fails``: as work that waits for
    the device, which cannot be captured. ``most_rows``: memory runs out for graphs of more. ``runs``: it suffices for
    the runs before."""

    def __init__(self, *, fails: bool = False, most_rows: int = sys.maxsize, runs: bool = True) -> None:
        self.num_captures = self.num_replays = 0
        self._fails, self.most_rows, self._runs = fails, most_rows, runs

    def run(self, work: Callable[[], Any]) -> None:
        if not self._runs:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def __call__(self, work: Callable[[], Any]) -> Captured[Any]:
        output = work()
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        if len(output[0]) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.num_captures += 1

        def replay() -> None:
            self.num_replays += 1
            for kept, made in zip(output, work(), strict=True):
                kept.copy_(made)

        for each in output:
            each.fill_(-9)  # a capture computes nothing
        return Captured(replay, output)


class LateCapture:
    """See ``cuda.graphs.capture.Capture``, on a device that computes late: the operations are kept, not the code that
    issued them, so that a replay is one launch and knows nothing of the host."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self.num_replays = 0

    def run(self, work: Callable[[], object]) -> None:
        """A late device has nothing to compile."""

    def __call__(self, work: Callable[[], T]) -> Captured[T]:
        output, compute = self._device.record(work)

        def replay() -> None:
            self.num_replays += 1
            self._device.put(compute)

        return Captured(replay, output)


class OneLaunch(TorchSampling):
    """Torch's operations count as one kernel."""

    in_graphs = True


class _Captures(TorchPlatform):
    """Captures decode steps, with experts in one piece."""

    capture: Any

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> StaticSdpa:
        return StaticSdpa(spec, self.dtype, self.device, self.transfers())

    def sampling(self) -> OneLaunch:
        return OneLaunch(self.transfers())

    def layer_context(self, tp: TpGroup, quantization: Quantization = "none") -> LayerContext:
        return replace(super().layer_context(tp, quantization), grouped_experts=self._experts)

    def _experts(self, shape: ExpertsShape) -> StackedExperts:
        return StackedExperts(shape, PairByPair(shape), self.dtype, self.device)

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        if not (parts.rungs and parts.model.is_capturable):
            return None
        return CapturedDecodes(parts, self.transfers(), self.capture)


class LateGraphs(_Captures, LatePlatform):
    """A late device that captures decode steps."""

    def __init__(self, queue: LateDevice) -> None:
        super().__init__(queue)
        self.capture = LateCapture(queue)


class RecordedGraphs(_Captures):
    """A CPU whose decode steps are recorded and done again."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.capture = Recorder()


class PairByPair:
    """See ``cuda.experts.grouped.ExpertKernels``. Of silu MLPs, with a copy of an expert's matrices for each token that
    it computes."""

    def __init__(self, shape: ExpertsShape) -> None:
        self._moe, self._act_and_mul = shape.moe, shape.act_and_mul

    def mixed(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        weights, experts = route(logits, self._moe)
        first, last = (each.index_select(0, experts.flatten()) for each in (gate_up, down))
        rows = x[:, None].expand(-1, self._moe.top_k, -1).flatten(0, 1)
        inner = self._act_and_mul(torch.bmm(first, rows[..., None])[..., 0])
        results = torch.bmm(last, inner[..., None])[..., 0].view(len(x), self._moe.top_k, -1)
        total = (results * weights[..., None]).sum(1)
        return total if residual is None else residual.add_(total)


class StaticRows(NamedTuple):
    """A step of single rows, in a tensor that stays where it is: by row where each token of its context is stored,
    where its own is, and the length; 0 behind the rows of the step."""

    numbers: torch.Tensor
    """int64 [rows, context + 2]."""


class StaticSdpa(SdpaAttention):
    """Torch's attention. A step of single rows can be captured, as on Triton's kernels."""

    supports_graphs = True

    def builder(self, limits: StepLimits) -> Any:
        return _StaticBuilder(super().builder(limits), limits, self._transfers)

    def graph_key(self, metadata: Any) -> Any:
        return "static" if isinstance(metadata, StaticRows) else None

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: Any,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        if not isinstance(metadata, StaticRows):
            return super().forward(q, kv, layer_kv, metadata, mask, turn)
        rows = metadata.numbers[: len(q)]
        context, own, lengths = rows[:, :-2], rows[:, -2], rows[:, -1:]
        tokens = layer_kv.flatten(0, 1)
        # Rows behind the step store what the first one does, where it does.
        tokens.index_copy_(0, own, torch.where(lengths[:, :, None, None] > 0, kv, kv[:1]))
        keys, values = tokens.index_select(0, context.reshape(-1)).unflatten(0, context.shape).unbind(2)
        seen = torch.arange(context.shape[1], device=q.device) < lengths.clamp(min=1)
        heads = q.unflatten(1, (self._spec.num_kv_heads, -1))
        out = F.scaled_dot_product_attention(
            heads, keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None], scale=self._spec.scale
        )
        return out.flatten(1, 2)


class _StaticBuilder:
    def __init__(self, other: Any, limits: StepLimits, transfers: Transfers) -> None:
        self._other, self._limits, self._transfers = other, limits, transfers
        width = limits.max_blocks * limits.block_tokens + 2
        self._numbers = torch.zeros(limits.max_seqs, width, dtype=torch.int64, device=transfers.device)

    def build(self, step: AttentionInput) -> StaticRows | SdpaMetadata:
        if (step.counts > 1).any() or len(step.counts) > len(self._numbers):
            made: SdpaMetadata = self._other.build(step)
            return made
        numbers = np.zeros(tuple(self._numbers.shape), dtype=np.int64)
        numbers[:, -2] = step.slot_mapping[0]
        size = self._limits.block_tokens
        for row, (slot, start) in enumerate(zip(step.slots, step.starts, strict=True)):
            positions = np.arange(start + 1)
            numbers[row, : start + 1] = step.block_tables[slot, positions // size] * size + positions % size
            numbers[row, -2:] = step.slot_mapping[row], start + 1
        self._transfers.copy_into(self._numbers, torch.from_numpy(numbers))
        return StaticRows(self._numbers)
