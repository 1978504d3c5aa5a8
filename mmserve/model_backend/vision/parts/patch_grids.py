"""Where the patches of pictures of different sizes are: their order, rotary angles and learned positions.

A grid is (frames, rows, columns) of one picture's patches. Its patches follow each other by squares of ``merge`` x
``merge``: squares row by row, and the patches of a square row by row. Rows of several grids follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Grid = tuple[int, int, int]
Angles = tuple[torch.Tensor, torch.Tensor]


def frame_lengths(grids: Sequence[Grid]) -> list[int]:
    """Patches of each frame."""
    return [rows * columns for frames, rows, columns in grids for _ in range(frames)]


def patch_positions(grids: Sequence[Grid], merge: int) -> torch.Tensor:
    """int64 [T, 2]: row and column of each patch."""
    return torch.cat([_positions(grid, merge) for grid in grids])


def _positions(grid: Grid, merge: int) -> torch.Tensor:
    frames, rows, columns = grid
    places = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), dim=-1)
    squares = places.view(rows // merge, merge, columns // merge, merge, 2).transpose(1, 2)
    return squares.reshape(-1, 2).repeat(frames, 1)


def axial_angles(positions: torch.Tensor, head_dim: int, theta: float) -> Angles:
    """Cosines and sines [T, head_dim / 2], float32: the first half turns with the row, the second with the column."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2))
    radians = (positions[:, :, None].float() * frequencies).flatten(1)
    return radians.cos(), radians.sin()


def interleaved_angles(positions: torch.Tensor, head_dim: int, theta: float) -> Angles:
    """As ``axial_angles``, but rows have every second frequency of a whole head, and columns the others."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    radians = positions[:, :, None].float() * frequencies.view(-1, 2).t()
    return radians.flatten(1).cos(), radians.flatten(1).sin()


def window_order(grids: Sequence[Grid], side: int) -> tuple[torch.Tensor, list[int]]:
    """The numbers of the cells of all grids, window by window, and the number of cells in each window.

    Windows are squares of ``side`` cells, smaller at the right and lower edges.
    """
    windows, first = [], 0
    for frames, rows, columns in grids:
        cells = torch.arange(frames * rows * columns).view(frames, rows, columns) + first
        for frame in cells:
            windows += [window.flatten() for band in frame.split(side) for window in band.split(side, dim=1)]
        first += cells.numel()
    return torch.cat(windows), [len(window) for window in windows]


def resampled(table: torch.Tensor, grids: Sequence[Grid], merge: int) -> torch.Tensor:
    """A square of learned vectors [side, side, size] -> one for each patch [T, size], float32.

    Bilinear; the corners of a picture are the corners of the square.
    """
    side = len(table)
    sizes = torch.cat([torch.tensor([grid[1:]]).expand(grid[0] * grid[1] * grid[2], 2) for grid in grids])
    places = patch_positions(grids, merge).float() * (side - 1) / (sizes - 1).clamp(min=1)
    first = places.long()
    second, weight = (first + 1).clamp(max=side - 1), (places - first).to(table.device)
    found = torch.zeros(len(places), table.shape[2], device=table.device)
    for rows, row_weight in ((first[:, 0], 1 - weight[:, 0]), (second[:, 0], weight[:, 0])):
        for columns, column_weight in ((first[:, 1], 1 - weight[:, 1]), (second[:, 1], weight[:, 1])):
            found += table[rows, columns] * (row_weight * column_weight)[:, None]
    return found
