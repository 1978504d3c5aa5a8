"""Llama and Mistral without a sliding window: text only."""

from __future__ import annotations

from typing import Any

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.llama import Llama

NAME_PREFIXES = (("model.", "text."), ("lm_head.", "text.lm_head."))


def decoder(spec: TextSpec, attention: AttentionBackend[Any], context: LayerContext) -> Llama:
    return Llama(spec, attention, Rotary(spec, context.dtype, context.device), context=context)


FAMILY = Family(NAME_PREFIXES, decoder)
