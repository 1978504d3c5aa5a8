"""Names of a projector's tensors: those of GGUF, and those of the family's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import add
from typing import NamedTuple

from msgspec.structs import replace

from mmserve.checkpoint.gguf.projectors.tower import Tower
from mmserve.checkpoint.gguf.reader import GgufTensor
from mmserve.checkpoint.gguf.table import Entry, whole
from mmserve.runtime.errors import StartupError

_LAYER = re.compile(r"v\.blk\.(\d+)\.((\w+)\.(weight|bias))")
_COPIES = {"v.token_embd.img_break"}
"""Of rows of the language model's embedding."""
_MLP = re.compile(r"\.ffn_(up|gate|down)\.")
_TURNED = re.compile(r"\.attn_[qk]\.")
_KERNEL_DIMENSIONS, _FRAMES_AXIS = 4, 2
"""Kernels [out, colours, height, width] become one [out, colours, frames, height, width]."""


class Names(NamedTuple):
    """Tensors that get one name are joined in the order of the mapping: kernels as frames, others by their outputs."""

    layer: str
    """What names in a layer begin with, {} is its number."""
    parts: Mapping[str, str]
    """Of a layer: GGUF's name, with or without .weight or .bias -> the family's."""
    others: Mapping[str, str]
    """Names, or their beginnings up to a dot -> the family's."""
    dimensions: Mapping[str, int] = {}
    """Of tensors that the family stores with leading dimensions of 1, which GGUF may leave out."""
    turned_heads: int = 0
    """Rows of so many heads of queries and keys have become neighbours (``table.Entry``)."""


def named(tower: Tower, names: Names) -> list[Entry]:
    """An unknown name stays, so that loading reports it. Raises StartupError for pieces that differ."""
    tensors = tower.tensors
    parts = _exchanged(names.parts) if _is_exchanged(tensors) else names.parts
    groups: dict[str, list[tuple[int, GgufTensor]]] = {}
    for tensor in tensors.values():
        if tensor.name not in _COPIES:
            place, name = _name(tensor.name, names, parts)
            groups.setdefault(name, []).append((place, tensor))
    pieces = {name: [tensor for _, tensor in sorted(group, key=_place)] for name, group in groups.items()}
    return [_padded(_entry(name, group, names), group[0].name, tower) for name, group in pieces.items()]


def _place(entry: tuple[int, GgufTensor]) -> int:
    return entry[0]


def _is_exchanged(tensors: Mapping[str, GgufTensor]) -> bool:
    """Older converters called the first matrix of MLPs "down", which makes the model wider."""
    down, out = tensors.get("v.blk.0.ffn_down.weight"), tensors.get("v.blk.0.attn_out.weight")
    return down is not None and out is not None and down.shape[1] == out.shape[1] != down.shape[0]


def _exchanged(parts: Mapping[str, str]) -> Mapping[str, str]:
    return {**parts, "ffn_up": parts["ffn_down"], "ffn_down": parts["ffn_up"]}


def _name(stored: str, names: Names, parts: Mapping[str, str]) -> tuple[int, str]:
    """(place among pieces, name)."""
    if found := _LAYER.fullmatch(stored):
        layer, whole_part, part, last = found.groups()
        for key, suffix in ((whole_part, ""), (part, f".{last}")):
            if key in parts:
                return [*parts].index(key), names.layer.format(layer) + parts[key] + suffix
        return 0, stored
    for place, (key, name) in enumerate(names.others.items()):
        if stored == key or (key.endswith(".") and stored.startswith(key)):
            return place, name + stored.removeprefix(key)
    return 0, stored


def _entry(name: str, pieces: list[GgufTensor], names: Names) -> Entry:
    first = pieces[0]
    if any((each.kind, each.shape) != (first.kind, first.shape) for each in pieces):
        raise StartupError(f"tensors {', '.join(each.name for each in pieces)} are of different types or shapes")
    entry = whole(name, first)
    if len(pieces) > 1:
        entry = _joined(entry, pieces)
    if missing := names.dimensions.get(first.name, 0) - len(entry.shape):
        entry = replace(entry, shape=(1,) * missing + entry.shape)
    if _TURNED.search(first.name):
        entry = replace(entry, turned_heads=names.turned_heads)
    return entry


def _padded(entry: Entry, stored: str, tower: Tower) -> Entry:
    inner, missing = tower.stored_inner_size, tower.inner_size - tower.stored_inner_size
    if not missing or not _MLP.search(stored):
        return entry
    zeros = tuple(missing if size == inner else 0 for size in entry.shape)
    return replace(entry, shape=tuple(map(add, entry.shape, zeros)), zeros=zeros)


def _joined(entry: Entry, pieces: list[GgufTensor]) -> Entry:
    axis, shape = 0, list(entry.shape)
    if len(shape) == _KERNEL_DIMENSIONS:
        axis = _FRAMES_AXIS
        shape.insert(axis, 1)
    shape[axis] *= len(pieces)
    return replace(entry, shape=tuple(shape), starts=tuple(each.start for each in pieces), axis=axis)
