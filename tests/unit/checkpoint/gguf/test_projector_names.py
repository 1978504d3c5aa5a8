"""Names and shapes of a projector's tensors, of pieces that become one among them."""

from __future__ import annotations

from math import prod

import pytest

from mmserve.checkpoint.gguf.projectors.names import Names, named
from mmserve.checkpoint.gguf.projectors.tower import Tower
from mmserve.checkpoint.gguf.reader import GgufHeader, GgufTensor
from mmserve.checkpoint.gguf.table import Entry
from mmserve.checkpoint.gguf.tensor_types import TENSOR_TYPES, TensorType
from mmserve.runtime.errors import StartupError

F32, Q8_0 = TENSOR_TYPES[0], TENSOR_TYPES[8]
NAMES = Names(
    layer="layers.{}.",
    parts={"attn_q": "qkv", "attn_k": "qkv", "ffn_up": "up", "ffn_down": "down", "ls1.weight": "scale"},
    others={"v.class_embd": "class", "v.kernel.weight": "kernel", "v.kernel.weight.1": "kernel", "mm.0.": "first."},
    dimensions={"v.class_embd": 3},
)
LAYER = {"v.blk.0.ffn_up.weight": (24, 32), "v.blk.0.ffn_down.weight": (32, 24), "v.blk.0.attn_out.weight": (32, 32)}


def entries(kind: TensorType = F32, **others: tuple[int, ...]) -> dict[str, Entry]:
    """By name, of a layer of 32 inputs and 24 units and of ``others``, with __ for dots. Each begins at its place."""
    shapes = LAYER | {name.replace("__", "."): shape for name, shape in others.items()}
    tensors = {
        name: GgufTensor(name, kind if shape[-1] % 32 == 0 else F32, shape, place, prod(shape))
        for place, (name, shape) in enumerate(shapes.items())
    }
    header = GgufHeader({"clip.vision.embedding_length": 32}, tensors)
    return {entry.name: entry for entry in named(Tower(header), NAMES)}


def test_dimensions_that_the_file_leaves_out_come_back() -> None:
    assert entries(v__class_embd=(32,))["class"].shape == (1, 1, 32)
    assert entries(v__class_embd=(1, 1, 32))["class"].shape == (1, 1, 32)


def test_matrices_are_joined_by_outputs_and_kernels_as_frames_in_the_order_of_the_names() -> None:
    found = entries(v__blk__1__attn_k__weight=(32, 32), v__blk__1__attn_q__weight=(32, 32))["layers.1.qkv.weight"]
    assert (found.shape, found.axis, found.starts) == ((64, 32), 0, (4, 3))
    found = entries(v__kernel__weight__1=(8, 3, 2, 2), v__kernel__weight=(8, 3, 2, 2))["kernel"]
    assert (found.shape, found.axis, found.starts) == ((8, 3, 2, 2, 2), 2, (4, 3))


def test_pieces_that_differ_are_refused() -> None:
    with pytest.raises(StartupError, match=r"v\.blk\.1\.attn_q\.weight, v\.blk\.1\.attn_k\.weight are of different"):
        entries(v__blk__1__attn_q__weight=(32, 32), v__blk__1__attn_k__weight=(16, 32))


def test_units_of_mlps_are_made_whole_panels_where_matrices_are_in_blocks() -> None:
    found, in_blocks = entries(), entries(Q8_0, v__blk__0__ffn_up__bias=(24,))
    assert [found[f"layers.0.{name}.weight"].shape for name in ("up", "down")] == [(24, 32), (32, 24)]
    assert [in_blocks[f"layers.0.{name}"].shape for name in ("up.weight", "up.bias", "down.weight")] == [
        (32, 32),
        (32,),
        (32, 32),
    ]
    assert [in_blocks[f"layers.0.{name}.weight"].zeros for name in ("up", "down")] == [(8, 0), (0, 8)]


def test_a_whole_name_comes_before_its_part_and_an_unknown_one_stays() -> None:
    found = entries(v__blk__7__ls1__weight=(32,), mm__0__bias=(32,), v__other=(32,), v__blk__0__other__weight=(32,))
    assert {"layers.7.scale", "first.bias", "v.other", "v.blk.0.other.weight"} <= found.keys()
