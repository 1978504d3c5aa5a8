"""Runs a model of transformers without weights, to see how it calls attention.

Tensors on torch's meta device have shapes but no memory, so that this takes seconds for a model of any size. What a
model calls is certain; what a config's keys mean differs between architectures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from mmserve.model_backend.models.generic.architecture import Architecture
from mmserve.model_backend.models.generic.masks import MaskFunction, window_of
from mmserve.model_backend.models.generic.parts import ModelParts
from mmserve.runtime.errors import StartupError

_NAME = "mmserve_probe"
_ROWS = 8
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments that change what attention computes: soft caps, sinks, biases."""


class LayerAttention(NamedTuple):
    """How one layer calls attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Of the products of queries and keys."""
    window: int | None


class Probed(NamedTuple):
    """What a model is, as seen from outside."""

    layers: tuple[LayerAttention, ...]
    hidden_size: int
    vocab_size: int
    """Ids that have both an embedding and a logit."""
    base: Any
    """Of transformers: the model without its head, and without weights."""


def probe(architecture: Architecture, max_position: int) -> Probed:
    """Raises StartupError if the model does something that mmserve's attention cannot do."""
    recorder = _Recorder(max_position)
    AttentionInterface.register(_NAME, recorder.attend)
    AttentionMaskInterface.register(_NAME, recorder.mask)
    with torch.device("meta"), torch.inference_mode():
        model = _without_weights(architecture)
        parts = ModelParts(model.eval())
        hidden = parts.embed(torch.zeros(_ROWS, dtype=torch.int64))
        # Without a mask transformers would look at the positions to find several sequences; here they have no values.
        outputs = parts.outputs(hidden, torch.arange(_ROWS)[None], torch.ones(1, _ROWS, dtype=torch.bool))
        logits = parts.logits(outputs)
    vocab_size = min(logits.shape[-1], model.get_input_embeddings().weight.shape[0])
    layers = recorder.layers(architecture.text.num_hidden_layers)
    return Probed(layers, hidden.shape[-1], vocab_size, parts.layers)


def _without_weights(architecture: Architecture) -> Any:
    try:
        return architecture.model_class._from_config(
            architecture.config, attn_implementation=_NAME, experts_implementation="batched_mm"
        )
    except KeyError as error:
        if error.args != (_NAME,):
            raise
        # Falcon, GPT-J: a table of classes, one for each implementation that transformers knows.
        raise StartupError("its layers do not use transformers' attention interface") from None


class _Recorder:
    """Stands in for attention and masks, and notes the calls."""

    def __init__(self, max_position: int) -> None:
        self._max_position = max_position
        self._calls: dict[int, LayerAttention] = {}
        self._masks: list[tuple[torch.Tensor, int | None]] = []

    def mask(self, *, mask_function: MaskFunction, **options: object) -> torch.Tensor:
        """A tensor by which ``attend`` recognises this mask."""
        marker = torch.empty(1, 1, _ROWS, _ROWS)
        self._masks.append((marker, window_of(mask_function, self._max_position)))
        return marker

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        is_causal: bool | None = None,
        **options: object,
    ) -> tuple[torch.Tensor, None]:
        (batch, heads, rows, dim), kv_heads = query.shape, key.shape[1]
        if not (key.shape == value.shape == (batch, kv_heads, rows, dim) and (batch, rows) == (1, _ROWS)):
            raise StartupError(f"its keys are {list(key.shape[1:])} and its values {list(value.shape[1:])}")
        if present := [name for name in _UNSUPPORTED if options.get(name) is not None]:
            raise StartupError(f"its attention asks for {present[0]!r}")
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            raise StartupError("its attention is not causal")
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self._calls:
            raise StartupError("its layers call attention several times, or do not say which layer they are")
        window = self._window(attention_mask, sliding_window)
        scale = dim**-0.5 if scaling is None else float(scaling)
        self._calls[layer] = LayerAttention(heads, kv_heads, dim, scale, window)
        return query.new_empty(batch, rows, heads, dim), None

    def _window(self, mask: torch.Tensor | None, argument: int | None) -> int | None:
        """Of the mask that transformers itself would apply, which must agree with what it tells faster kernels."""
        told = argument if argument is not None and argument < self._max_position else None
        if mask is None:
            return told
        found = [window for marker, window in self._masks if marker is mask]
        if not found:
            raise StartupError("it changes its masks")
        if told is not None and told != found[0]:
            raise StartupError(f"its window is {argument} to kernels and {found[0]} in its mask")
        return found[0]

    def layers(self, expected: int) -> tuple[LayerAttention, ...]:
        """All layers in order. Raises StartupError if some do not call attention, or differ in their heads."""
        if sorted(self._calls) != list(range(expected)):
            raise StartupError(f"{len(self._calls)} of its {expected} layers call transformers' attention interface")
        found = tuple(self._calls[layer] for layer in range(expected))
        if len({layer[:3] for layer in found}) != 1:
            raise StartupError("its layers differ in the number or the size of their heads")
        return found
