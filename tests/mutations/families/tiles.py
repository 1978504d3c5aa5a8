"""Mutations of families whose towers read square tiles."""

from __future__ import annotations

from tests.mutations.families import shared
from tests.mutations.mutation import Family, Mutation

_ANYRES = "model_backend/vision/anyres.py"
_ANYRES_SIZES = "processors/anyres.py"
_CLIP = "model_backend/vision/clip.py"
_GEMMA3 = "processors/families/gemma3.py"
_IDEFICS3 = "processors/families/idefics3.py"
_INTERNVL = "processors/families/internvl.py"
_TILE_GRIDS = "processors/pixels/tile_grids.py"
_INTERNVIT = "model_backend/vision/internvit.py"
_SDPA = "model_backend/attention/sdpa.py"
_TOWERS = ("model_backend/vision/test_towers.py", "model_backend/models/test_vision_parity.py")

_CLASS_TOKEN = Mutation("the last patch is dropped, not the class token", _CLIP, "x = x[:, 1:]", "x = x[:, :-1]")
_CLIP_LAYER = Mutation(
    "features are those of one layer before",
    "checkpoint/vision/clip.py",
    "self.num_layers + 1 + self.feature_layer",
    "self.num_layers + self.feature_layer",
)
_ANYRES_MUTATIONS = (
    shared.TILE_CORNERS,
    shared.NO_CHANNEL_VALUES,
    Mutation(
        "margins are cut off the wrong sides",
        _ANYRES,
        "top, left = (grid.shape[0] - height) // 2, (grid.shape[1] - width) // 2",
        "top, left = grid.shape[0] - height, grid.shape[1] - width",
    ),
    Mutation(
        "the grid's tiles are read column by column",
        _ANYRES,
        "tiles[1:].view(rows, columns, side, side, hidden).transpose(1, 2)",
        "tiles[1:].view(columns, rows, side, side, hidden).permute(1, 2, 0, 3, 4)",
    ),
    Mutation(
        "lines begin with the learned row",
        _ANYRES,
        "torch.cat((grid, self.newline.expand(len(grid), 1, hidden)), dim=1)",
        "torch.cat((self.newline.expand(len(grid), 1, hidden), grid), dim=1)",
    ),
    Mutation(
        "the whole picture comes last",
        _ANYRES,
        "torch.cat((whole, lines.flatten(0, 1)))",
        "torch.cat((lines.flatten(0, 1), whole))",
    ),
    Mutation(
        "of resolutions that keep as many pixels, the first is taken",
        _ANYRES_SIZES,
        "kept > most_kept or (kept == most_kept and wasted < least_wasted)",
        "kept > most_kept",
    ),
    Mutation(
        "an odd margin is cut off whole",
        _ANYRES_SIZES,
        "rows - (rows - kept) // 2 * 2",
        "kept",
    ),
    *shared.ROW_MUTATIONS,
)

FAMILIES = {
    "llava": Family(
        ("processors/families/test_llava.py", "model_backend/vision/test_llava_parity.py"),
        "llava",
        (
            Mutation(
                "a picture is cropped at its corner",
                "processors/clip_settings.py",
                "(size[0] - tile[0]) // 2, (size[1] - tile[1]) // 2",
                "0, 0",
            ),
            _CLASS_TOKEN,
            _CLIP_LAYER,
            Mutation(
                "the class token stands behind the patches",
                _CLIP,
                "torch.cat((first, patches), dim=1)",
                "torch.cat((patches, first), dim=1)",
            ),
            Mutation(
                "a picture is read column by column",
                _CLIP,
                "patches_of(pixels, ",
                "patches_of(pixels.mT, ",
            ),
            Mutation("the first norm is left out", _CLIP, "self.pre_norm(self.embedding(", "(self.embedding("),
            *shared.ROW_MUTATIONS,
        ),
    ),
    "llava_next": Family(
        ("processors/families/test_llava_next.py", *_TOWERS),
        "llava_next",
        (_CLASS_TOKEN, _CLIP_LAYER, *_ANYRES_MUTATIONS),
    ),
    "llava_onevision": Family(
        ("processors/families/test_llava_next.py", *_TOWERS),
        "llava_onevision or families",
        (
            Mutation("large grids are shrunk from the limit on", _ANYRES_SIZES, "SHRINKING = 1.1", "SHRINKING = 1.0"),
            Mutation(
                "the sides of a shrunk grid are rounded",
                _ANYRES_SIZES,
                "int(columns // ratio)",
                "round(columns / ratio)",
            ),
            Mutation("features are resampled by corners", _ANYRES, "align_corners=False", "align_corners=True"),
            Mutation(
                "SigLIP's features are normalized",
                _ANYRES,
                "SiglipEncoder(spec, has_last_norm=False,",
                "SiglipEncoder(spec, has_last_norm=True,",
            ),
            *_ANYRES_MUTATIONS,
        ),
    ),
    "internvl": Family(
        ("processors/families/test_internvl.py", *_TOWERS),
        "internvl",
        (
            shared.TILE_CORNERS,
            Mutation(
                "the thumbnail comes first",
                _INTERNVL,
                "(tiles, Part((side, side))) if",
                "(Part((side, side)), tiles) if",
            ),
            Mutation(
                "of grids that are as near, one that is filled is taken",
                _TILE_GRIDS,
                "fills = width * height > 0.5 * side",
                "fills = width * height > 1.0 * side",
            ),
            Mutation(
                "of grids that are as near, the first is taken",
                _TILE_GRIDS,
                "distance < nearest or (distance == nearest and fills)",
                "distance < nearest",
            ),
            Mutation("the last patch is dropped, not the class token", _INTERNVIT, "x[:, 1:], side", "x[:, :-1], side"),
            Mutation(
                "attention is scaled as the MLP",
                _INTERNVIT,
                "scale=self.scales[0], context",
                "scale=self.scales[1], context",
            ),
            Mutation(
                "attention with norms of queries and keys is scaled as the MLP",
                _INTERNVIT,
                "self.out(attended), self.scales[0]",
                "self.out(attended), self.scales[1]",
            ),
            Mutation(
                "values are normalized, not keys",
                _INTERNVIT,
                "k_norm.heads_(whole[:, 1:2])",
                "k_norm.heads_(whole[:, 2:])",
            ),
            Mutation(
                "the projector's norm is left out",
                _INTERNVIT,
                "self.projector(self.projector_norm(blocks))",
                "self.projector(blocks)",
            ),
            shared.BLOCKS_BY_COLUMN,
            shared.TILE_PATCHES_BY_COLUMN,
            *shared.ROW_MUTATIONS,
        ),
    ),
    "gemma3": Family(
        (
            "processors/families/test_gemma3.py",
            "model_backend/vision/test_towers.py",
            "model_backend/models/test_gemma3_parity.py",
        ),
        "gemma3 and not show",
        (
            Mutation("a picture stands between single line breaks", _GEMMA3, '{_END}\\n\\n"', '{_END}\\n"'),
            Mutation(
                "the number of crops is rounded to even",
                _GEMMA3,
                "math.floor(long / short + 0.5)",
                "round(long / short)",
            ),
            Mutation("crops go along the shorter side", _GEMMA3, "if width >= height:", "if width < height:"),
            Mutation(
                "a row is the mean of distant patches",
                "model_backend/vision/gemma3.py",
                ".mean(dim=(2, 4))",
                ".mean(dim=(1, 3))",
            ),
            Mutation(
                "the projector's norm is as it is stored",
                "model_backend/vision/gemma3.py",
                "self._spec.norm_offset + self.norm_weight.float()",
                "self.norm_weight.float()",
            ),
            Mutation(
                "pictures are read as text is",
                "checkpoint/families/vision/gemma3.py",
                "whole_images=True",
                "whole_images=False",
            ),
            Mutation(
                "a window hides no part of a picture",
                _SDPA,
                "hidden |= positions <= own - mask.window",
                "hidden |= (positions <= own - mask.window) & (image_ends == own + 1)",
            ),
            Mutation(
                "a picture ends one token early",
                "model_backend/worker/forward_batch.py",
                "end = span.start + span.num_tokens",
                "end = span.start + span.num_tokens - 1",
            ),
            Mutation(
                "the rest of a picture after a prefix hit lacks its last token",
                "model_backend/worker/forward_batch.py",
                "ends[row + max(span.start, step.start) : row + end] = end",
                "ends[row + max(span.start, step.start) : row + end] = end if span.start >= step.start else end - 1",
            ),
            *shared.ROW_MUTATIONS,
        ),
    ),
    "idefics3": Family(
        (
            "processors/families/test_idefics3.py",
            "httpserver/prompt/test_vision_families.py",
            "model_backend/vision/test_idefics3.py",
            "model_backend/models/test_vision_parity.py",
        ),
        "idefics3",
        (
            Mutation(
                "tiles go column by column",
                "processors/pixels/views.py",
                "row, column = divmod(index, cut.columns)",
                "column, row = divmod(index, cut.rows)",
            ),
            Mutation(
                "the whole picture is not made of the picture that is cut into tiles",
                _IDEFICS3,
                "Resizing(2, tile)",
                "Resizing(0, tile)",
            ),
            Mutation("rows of tiles are counted from 0", _IDEFICS3, "<row_{row + 1}_col", "<row_{row}_col"),
            Mutation(
                "lines of tiles are not separated from the whole picture",
                _IDEFICS3,
                '+ ("\\n" if lines else "")',
                '+ ("" if lines else "")',
            ),
            Mutation("the shorter side may be odd", _TILE_GRIDS, "int(length) + int(length) % 2", "int(length)"),
            Mutation(
                "a tile's patches have their own positions",
                "model_backend/vision/idefics3.py",
                "(buckets[:, None] * side + buckets).flatten()",
                "torch.arange(side * side)",
            ),
            shared.BLOCKS_BY_COLUMN,
            shared.TILE_PATCHES_BY_COLUMN,
            shared.ROWS_OF_A_LATER_RUN,
            *shared.ROW_MUTATIONS,
        ),
    ),
}
