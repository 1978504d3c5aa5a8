"""Mutations of Qwen's families with pictures."""

from __future__ import annotations

from tests.mutations.families import shared
from tests.mutations.families.text import FEWER_EXPERTS, GATE_AFTER_UP, NORM_AFTER_ROTATION, UNSORTED_WEIGHTS
from tests.mutations.mutation import Family, Mutation

_GRIDS = "model_backend/vision/parts/patch_grids.py"
_LAYERS = "model_backend/vision/parts/qwen_layers.py"
_SMART_RESIZE = "processors/smart_resize.py"
_QWEN25 = "model_backend/vision/qwen2_5_vl.py"
_QWEN3 = "model_backend/vision/qwen3_vl.py"
_TESTS = (
    "processors/families/test_qwen_vl.py",
    "model_backend/models/test_positions.py",
    "model_backend/layers/test_rotary.py",
    "model_backend/vision/test_qwen_vl.py",
    "model_backend/models/test_qwen_vl_parity.py",
)

HALVES_UP = Mutation(
    "halves are rounded up when a size is chosen",
    _SMART_RESIZE,
    "rounded = round(width / factor) * factor, round(height / factor) * factor",
    "rounded = int(width / factor + 0.5) * factor, int(height / factor + 0.5) * factor",
)
LARGE_PICTURES_ROUNDED = Mutation(
    "a large picture is rounded to rows, not cut",
    _SMART_RESIZE,
    "max(factor, math.floor(width / shrinking / factor) * factor)",
    "max(factor, round(width / shrinking / factor) * factor)",
)
SMALL_PICTURES_ROUNDED = Mutation(
    "a small picture is rounded to rows, not filled up",
    _SMART_RESIZE,
    "math.ceil(height * growth / factor) * factor",
    "round(height * growth / factor) * factor",
)
_LINE_BY_LINE = Mutation(
    "the processor's patches stand line by line", "processors/families/qwen_vl.py", "in_blocks=True", "in_blocks=False"
)
_GELU = Mutation(
    "the merger's GELU is the approximation", _LAYERS, 'activation("gelu")', 'activation("gelu_pytorch_tanh")'
)
_COMMON = (
    _LINE_BY_LINE,
    shared.PIXELS_ACROSS,
    HALVES_UP,
    LARGE_PICTURES_ROUNDED,
    SMALL_PICTURES_ROUNDED,
    shared.PATCHES_BY_LINE,
    shared.TOWER_AXES,
    shared.FRAMES_TOGETHER,
    shared.PICTURES_TOGETHER,
    _GELU,
    *shared.POSITION_MUTATIONS,
    *shared.ROW_MUTATIONS,
)
_DEEPSTACK = (
    Mutation(
        "DeepStack reads the tower one layer late",
        _QWEN3,
        "if index in spec.deepstack_layers",
        "if index - 1 in spec.deepstack_layers",
    ),
    Mutation("DeepStack's streams are in the wrong order", _QWEN3, "*streams], dim=1", "*streams[::-1]], dim=1"),
    Mutation(
        "DeepStack's last stream is not added",
        "model_backend/models/decoder.py",
        "index < len(deepstack.values)",
        "index + 1 < len(deepstack.values)",
    ),
    Mutation(
        "DeepStack's streams are added to the wrong layers",
        "model_backend/worker/image_inputs.py",
        "wide[:, 1:].transpose(0, 1)",
        "wide[:, 1:].flip(1).transpose(0, 1)",
    ),
)
_INTERLEAVED = (
    Mutation(
        "the axes of positions follow each other",
        "checkpoint/families/vision/qwen3_vl.py",
        "interleaved=True",
        "interleaved=False",
    ),
    Mutation(
        "the axes alternate to the end of a head",
        "model_backend/layers/rotary.py",
        "turns.where(torch.arange(num_pairs) < ends, 0)",
        "turns",
    ),
)


def _family(select: str, *mutations: Mutation, tests: tuple[str, ...] = _TESTS) -> Family:
    return Family(tests, f"(families or positions or three_axes or {select}) and not show", mutations)


FAMILIES = {
    "qwen2_vl": _family("qwen2_vl", shared.SECTION_ORDER, *_COMMON),
    "qwen2_5_vl": _family(
        "qwen2_5_vl",
        Mutation("layers with and without windows are exchanged", _QWEN25, "if index in spec", "if index not in spec"),
        Mutation(
            "rows stay window by window",
            _QWEN25,
            "torch.empty_like(rows).index_copy_(0, order, rows)",
            "rows",
        ),
        Mutation("positions stay line by line", _QWEN25, "view(-1, square, 2)[order]", "view(-1, square, 2)"),
        Mutation(
            "a window is one square wider",
            "checkpoint/vision/qwen_vl.py",
            "self.window_size // self.merge_size // self.patch_size",
            "self.window_size // self.merge_size // self.patch_size + 1",
        ),
        Mutation(
            "windows go on over the right edge",
            _GRIDS,
            "for window in band.split(side, dim=1)",
            "for window in band.reshape(-1, 1).split(side * len(band))",
        ),
        shared.TEXT_AFTER_ROWS,
        shared.ROWS_OF_A_LATER_CHUNK,
    ),
    "qwen3_vl": _family(
        "qwen3_vl and not moe",
        Mutation(
            "learned positions are resampled by pixel centres",
            _GRIDS,
            ".float() * (side - 1) / (sizes - 1).clamp(min=1)",
            ".float() * side / sizes",
        ),
        Mutation(
            "the weights of neighbouring learned positions are exchanged",
            _GRIDS,
            "((first[:, 0], 1 - weight[:, 0]), (second[:, 0], weight[:, 0]))",
            "((second[:, 0], 1 - weight[:, 0]), (first[:, 0], weight[:, 0]))",
        ),
        Mutation(
            "learned positions have column and row exchanged", _GRIDS, "table[rows, columns]", "table[columns, rows]"
        ),
        *_DEEPSTACK,
        *_INTERLEAVED,
        NORM_AFTER_ROTATION,
        shared.GRID_AXES,
        shared.ROWS_OF_A_LATER_CHUNK,
    ),
    "qwen3_vl_moe": _family(
        "moe or experts",
        Mutation(
            "the router's probabilities are the weights of experts",
            "checkpoint/families/vision/qwen3_vl_moe.py",
            "renormalize=True",
            "renormalize=False",
        ),
        FEWER_EXPERTS,
        UNSORTED_WEIGHTS,
        GATE_AFTER_UP,
        Mutation(
            "experts are stored as [out, in] alone",
            "model_backend/loader/stored_parts.py",
            "shape[::-1] == expected",
            "shape == expected",
        ),
        _INTERLEAVED[0],
        _DEEPSTACK[1],
        tests=_TESTS[-1:],
    ),
}
