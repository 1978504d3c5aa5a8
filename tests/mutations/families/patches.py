"""Mutations of families whose towers read patches of pictures of any size, but for Qwen's."""

from __future__ import annotations

from tests.mutations.families import shared
from tests.mutations.families.qwen_vl import HALVES_UP, SMALL_PICTURES_ROUNDED
from tests.mutations.mutation import Family, Mutation

_GRIDS = "model_backend/vision/parts/patch_grids.py"
_PIXTRAL = "model_backend/vision/pixtral.py"
_MISTRAL3 = "processors/families/mistral3.py"
_PADDLE = "model_backend/vision/paddleocr_vl.py"
_TOWERS = ("model_backend/vision/test_towers.py", "model_backend/models/test_vision_parity.py")

_PIXTRAL_MUTATIONS = (
    Mutation(
        "sides are rounded to rows, not up",
        _MISTRAL3,
        "return -(-width // side) * side, -(-height // side) * side",
        "return round(width / side) * side, round(height / side) * side",
    ),
    Mutation(
        "the last line ends as the others",
        _MISTRAL3,
        "lines + self._separators.image_end_token",
        "lines + self._separators.image_break_token",
    ),
    Mutation(
        "a picture has as many lines as columns", _MISTRAL3, "(1, 1, columns)),) * rows", "(1, 1, columns)),) * columns"
    ),
    Mutation(
        "rows of a picture turn with the first half of the frequencies",
        _GRIDS,
        "frequencies.view(-1, 2).t()",
        "frequencies.view(2, -1)",
    ),
    Mutation(
        "the pictures of a batch attend to each other",
        _PIXTRAL,
        "layer(x, lengths, (cos.to(x), sin.to(x)))",
        "layer(x, [len(x)], (cos.to(x), sin.to(x)))",
    ),
    shared.PIXELS_ACROSS,
    shared.ROWS_OF_A_LATER_RUN,
    *shared.ROW_MUTATIONS,
)

FAMILIES = {
    "mistral3": Family(
        ("processors/families/test_mistral3.py", *_TOWERS),
        "mistral3",
        (
            *_PIXTRAL_MUTATIONS,
            Mutation(
                "the patch merger reads a block patch by patch",
                _PIXTRAL,
                ".transpose(1, 2).flatten(1)",
                ".flatten(1)",
            ),
            shared.BLOCKS_BY_COLUMN,
        ),
    ),
    "pixtral": Family(("processors/families/test_mistral3.py", *_TOWERS), "pixtral or families", _PIXTRAL_MUTATIONS),
    "paddleocr_vl": Family(
        ("processors/families/test_paddleocr_vl.py", "model_backend/models/test_positions.py", *_TOWERS),
        "paddleocr or positions",
        (
            Mutation(
                "patches stand in squares",
                "processors/families/paddleocr_vl.py",
                "in_blocks=False",
                "in_blocks=True",
            ),
            Mutation(
                "a narrow picture is not enlarged first",
                "processors/families/paddleocr_vl.py",
                "if width < side:",
                "if width < 1:",
            ),
            HALVES_UP,
            SMALL_PICTURES_ROUNDED,
            Mutation(
                "learned positions are resampled by corners",
                _PADDLE,
                "align_corners=False",
                "align_corners=True",
            ),
            Mutation(
                "learned positions have column and row exchanged",
                _PADDLE,
                "side, side, -1).permute(0, 3, 1, 2)",
                "side, side, -1).permute(0, 3, 2, 1)",
            ),
            shared.TOWER_AXES,
            Mutation(
                "the pictures of a batch attend to each other",
                _PADDLE,
                "self.encoder.encode(x, lengths,",
                "self.encoder.encode(x, [len(x)],",
            ),
            Mutation(
                "the projector's GELU is the approximation",
                _PADDLE,
                '_PROJECTOR_ACTIVATION = "gelu"',
                '_PROJECTOR_ACTIVATION = "gelu_pytorch_tanh"',
            ),
            shared.BLOCKS_BY_COLUMN,
            Mutation(
                "heads turn as ERNIE's",
                "checkpoint/families/vision/paddleocr_vl.py",
                "replace(rope, adjacent=False, sections",
                "replace(rope, sections",
            ),
            shared.SECTION_ORDER,
            *shared.POSITION_MUTATIONS,
            *shared.ROW_MUTATIONS,
        ),
    ),
}
