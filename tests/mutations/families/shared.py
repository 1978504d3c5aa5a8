"""Mutations of code that several families share. Each family's own tests must notice them."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_WRITER = "model_backend/worker/image_inputs.py"
_GRIDS = "model_backend/vision/parts/patch_grids.py"
_POSITIONS = "model_backend/models/positions.py"
_TILES = "model_backend/vision/parts/tiles.py"
_READ = """\
        first, end = (span.first_row + first) * self._row_nbytes, (span.first_row + end) * self._row_nbytes
"""

PIXELS_ACROSS = Mutation(
    "the pixels of a patch stand column by column",
    "model_backend/vision/pixels.py",
    ".transpose(2, 0, 3, 5, 1, 4)",
    ".transpose(2, 0, 3, 5, 4, 1)",
)
TILE_CORNERS = Mutation(
    "a tile begins in the wrong row of tiles",
    "processors/pixels/views.py",
    "row, column = divmod(index, cut.columns)",
    "row, column = divmod(index, cut.rows)",
)
NO_CHANNEL_VALUES = Mutation(
    "pixels are divided by the mean",
    "processors/pixels/values.py",
    "(values - mean[:, None]) / std[:, None]",
    "(values - std[:, None]) / mean[:, None]",
)

PATCHES_BY_LINE = Mutation(
    "the tower's patches stand line by line, not in squares",
    _GRIDS,
    "merge, columns // merge, merge, 2).transpose(1, 2)",
    "merge, columns // merge, merge, 2)",
)
TOWER_AXES = Mutation(
    "the tower's heads turn with column and row",
    _GRIDS,
    "radians = (positions[:, :, None].float() * frequencies).flatten(1)",
    "radians = (positions.flip(1)[:, :, None].float() * frequencies).flatten(1)",
)
FRAMES_TOGETHER = Mutation(
    "the frames of a picture attend to each other",
    _GRIDS,
    "return [rows * columns for frames, rows, columns in grids for _ in range(frames)]",
    "return [frames * rows * columns for frames, rows, columns in grids]",
)
PICTURES_TOGETHER = Mutation(
    "the pictures of a batch attend to each other",
    _GRIDS,
    "return [rows * columns for frames, rows, columns in grids for _ in range(frames)]",
    "return [sum(frames * rows * columns for frames, rows, columns in grids)]",
)
BLOCKS_BY_COLUMN = Mutation(
    "merged blocks are read column by column",
    _TILES,
    "grid.transpose(2, 3).flatten(3).flatten(1, 2)",
    "grid.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)",
)
TILE_PATCHES_BY_COLUMN = Mutation(
    "the patches of a tile stand column by column",
    _TILES,
    "blocks.permute(0, 2, 4, 1, 3, 5)",
    "blocks.permute(0, 4, 2, 1, 3, 5)",
)

ROWS_OF_A_LATER_CHUNK = Mutation(
    "a later chunk begins with a picture's first row",
    _WRITER,
    _READ,
    """\
        first, end = span.first_row * self._row_nbytes, (span.first_row + end - first) * self._row_nbytes
""",
)
ROWS_OF_A_LATER_RUN = Mutation(
    "every run begins with the picture's first row",
    _WRITER,
    _READ,
    """\
        first, end = first * self._row_nbytes, end * self._row_nbytes
""",
)
ROWS_ONE_TOKEN_EARLY = Mutation(
    "a picture's rows stand one token before its own",
    _WRITER,
    "first_row + span.start + first - step.start, num_rows",
    "max(0, first_row + span.start + first - step.start - 1), num_rows",
)

TEXT_AFTER_ROWS = Mutation(
    "the text after a picture goes on after its last row",
    _POSITIONS,
    "position += max(rows, columns)",
    "position += rows",
)
TEXT_AFTER_TOKENS = Mutation(
    "the text after a picture goes on after all its tokens",
    _POSITIONS,
    "position += max(rows, columns)",
    "position += span.num_tokens",
)
GRID_AXES = Mutation(
    "a picture's tokens have column and row exchanged",
    _POSITIONS,
    "np.indices(span.grid).reshape(_AXES, -1) + position",
    "np.indices(span.grid)[[0, 2, 1]].reshape(_AXES, -1) + position",
)
GRID_ONE_LATE = Mutation(
    "a picture's tokens are one position late",
    _POSITIONS,
    "np.indices(span.grid).reshape(_AXES, -1) + position",
    "np.indices(span.grid).reshape(_AXES, -1) + position + 1",
)
CHUNK_POSITIONS = Mutation(
    "the positions of a later chunk are those of the first",
    _POSITIONS,
    "[:, start : start + counts[chunk]]",
    "[:, : counts[chunk]]",
)
DECODING_POSITIONS = Mutation(
    "generated tokens are at their index, whatever the pictures",
    _POSITIONS,
    "np.concatenate(parts, axis=1, dtype=np.int32), position - index)",
    "np.concatenate(parts, axis=1, dtype=np.int32), 0)",
)
SECTION_ORDER = Mutation(
    "the sections of a head are those of column, row and time",
    "model_backend/layers/rotary.py",
    "return axes.repeat_interleave(torch.tensor(rope.sections))",
    "return axes.flip(0).repeat_interleave(torch.tensor(rope.sections))",
)

ROW_MUTATIONS = (ROWS_OF_A_LATER_CHUNK, ROWS_ONE_TOKEN_EARLY)
"""Of every family with pictures."""
POSITION_MUTATIONS = (
    TEXT_AFTER_ROWS,
    TEXT_AFTER_TOKENS,
    GRID_AXES,
    GRID_ONE_LATE,
    CHUNK_POSITIONS,
    DECODING_POSITIONS,
)
"""Of families whose positions have three axes."""
