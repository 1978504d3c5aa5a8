"""Text models of ``models.decoder.Decoder``: Llama and its relatives. They name their tensors alike."""

from __future__ import annotations

from typing import Any

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.decoder import Decoder


def decoder(spec: TextSpec, attention: AttentionBackend[Any], context: LayerContext) -> Decoder:
    return Decoder(spec, attention, Rotary(spec.layers, spec.head_dim, context.dtype, context.device), context=context)


FAMILY = Family(decoder)
