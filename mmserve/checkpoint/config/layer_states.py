"""What each layer keeps of the tokens that it has computed, by ``layer_types`` and ``num_kv_shared_layers``.

Families read of these keys what they can compute. Here all is read, so that no layer is computed as another kind.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.spec import LayerState, OwnKv, RecurrentState, SharedKv, TextSpec
from mmserve.runtime.errors import StartupError

_ATTENTION = ("full_attention", "sliding_attention", "attention")
_RECURRENT = ("linear_attention", "mamba", "conv", "recurrent", "hybrid", "hybrid_sliding")
"""As transformers names them, now or formerly. The last two have keys and values, too."""


class StatesJson(msgspec.Struct, kw_only=True):
    layer_types: list[str] | None = None
    num_kv_shared_layers: int | None = None
    """The last ones. Each reads the keys and values of the last layer before them that has its window."""


def with_states(text: TextSpec, raw: dict[str, Any]) -> TextSpec:
    """``raw``: the text model's config. Raises StartupError for a kind of layer that is not known."""
    config = convert(raw, StatesJson)
    kinds = config.layer_types or ["full_attention"] * text.num_layers
    if unknown := [kind for kind in kinds if kind not in _ATTENTION + _RECURRENT]:
        raise StartupError(f"layer type {unknown[0]!r} is not supported; supported are {', '.join(_ATTENTION[:2])}")
    if len(kinds) != text.num_layers:
        raise StartupError(f"layer_types names {len(kinds)} layers of {text.num_layers}")
    first_shared = text.num_layers - (config.num_kv_shared_layers or 0)
    layers = []
    for index, (layer, kind) in enumerate(zip(text.layers, kinds, strict=True)):
        state: LayerState = OwnKv()
        if kind in _RECURRENT:
            state = RecurrentState(kind=kind)
        elif index >= first_shared:
            state = SharedKv(layer=_source(text, layer.window, first_shared))
        layers.append(replace(layer, state=state))
    return replace(text, layers=tuple(layers))


def check(text: TextSpec) -> None:
    """Raise StartupError unless every layer has keys and values of its own."""
    for index, layer in enumerate(text.layers):
        match layer.state:
            case RecurrentState(kind=kind):
                raise StartupError(f"layer {index} has a recurrent state ({kind}), which is not supported")
            case SharedKv(layer=source):
                raise StartupError(f"layer {index} shares keys and values with layer {source}, which is not supported")


def _source(text: TextSpec, window: int | None, end: int) -> int:
    """The last layer before ``end`` with this window."""
    found = [index for index, layer in enumerate(text.layers[: max(0, end)]) if layer.window == window]
    if not found:
        raise StartupError("num_kv_shared_layers leaves no layer with keys and values to share")
    return found[-1]
