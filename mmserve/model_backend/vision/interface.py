"""What the visual server may ask of a vision tower."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from mmserve.messages.media import ExpandedImage, Size
from mmserve.model_backend.layers.target import Target
from mmserve.processors.interface import Views
from mmserve.processors.pixels.view_plan import ViewPlan


class PixelTensors(NamedTuple):
    """One decoded picture: ``processors.interface.Views`` as tensors of the host."""

    pixels: torch.Tensor
    """uint8: [1, height, width, 3], or tiles [k, S, S, 3]; with a plan the picture itself."""
    grids: torch.Tensor
    """int32 [views, 3]."""
    plan: ViewPlan | None = None

    @classmethod
    def of(cls, views: Views) -> PixelTensors:
        """Without a copy."""
        return cls(torch.from_numpy(views.pixels), torch.from_numpy(views.grids), views.plan)

    @property
    def nbytes(self) -> int:
        """Of the views, whether they are made yet or not."""
        return self.plan.nbytes if self.plan else self.pixels.nbytes


class ViewTensors(NamedTuple):
    """What the tower reads of one picture; ``pixels.PixelInputs`` makes it."""

    values: torch.Tensor
    """On the tower's device: patches [n, d] or tiles [k, 3, S, S]; or the bytes of a tower that takes those."""
    grids: torch.Tensor
    """int32 [views, 3], on the CPU."""


class Tower(Protocol):
    """A vision tower with its projector, an ``nn.Module``. Every process that uses it holds all of it."""

    def __call__(self, pictures: Sequence[ViewTensors], /) -> list[torch.Tensor]:
        """The rows [rows, streams * text hidden size] of each picture, which may have different sizes."""
        ...

    def targets(self) -> dict[str, Target | None]:
        """Canonical tensor name -> parameter; None for a stored tensor that is not needed."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """All layers, nested ones included, as ``nn.Module`` has it."""
        ...


@runtime_checkable
class CountsRows(Protocol):
    """A tower whose image processor no other process has."""

    def expansions(self, sizes: Sequence[Size], /) -> list[ExpandedImage | None]:
        """Of pictures of these sizes; None for one that cannot be processed. Not thread-safe."""
        ...


def joined(pictures: Sequence[ViewTensors]) -> tuple[torch.Tensor, list[int]]:
    """The values of all pictures in one tensor, and how many of its first dimension are of each picture.

    Those of a single picture are not copied.
    """
    values = [picture.values for picture in pictures]
    return values[0] if len(values) == 1 else torch.cat(values), [len(each) for each in values]


def grids_of(pictures: Sequence[ViewTensors]) -> list[tuple[int, int, int]]:
    """The grids of all views."""
    return [(frames, rows, columns) for picture in pictures for frames, rows, columns in picture.grids.tolist()]
