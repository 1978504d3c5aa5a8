"""Settings of transformers' CLIP image processor, and the views that follow from them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from PIL import Image

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors import settings
from mmserve.processors.pixels.resizing import check_working_pixels
from mmserve.processors.pixels.values import ValueSettings, background
from mmserve.processors.pixels.view_plan import Cut, Resizing, ViewPlan
from mmserve.runtime.errors import StartupError

Edge = Annotated[int, Meta(ge=1)]
"""Pixels."""


class EdgeSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Target of a resize or crop in pixels: both sides, or the shortest edge with the aspect ratio kept."""

    height: Edge | None = None
    width: Edge | None = None
    shortest_edge: Edge | None = None


class ClipSettings(ValueSettings, frozen=True, kw_only=True):
    """Fields and defaults of transformers' CLIPImageProcessor. Only LlavaImageProcessor uses ``do_pad``."""

    do_resize: bool = True
    size: EdgeSize | Edge = EdgeSize(shortest_edge=224)
    resample: Image.Resampling = Image.Resampling.BICUBIC
    do_center_crop: bool = True
    crop_size: EdgeSize | Edge = EdgeSize(height=224, width=224)
    do_pad: bool = False
    image_processor_type: str = "CLIPImageProcessor"

    @property
    def pads_to_square(self) -> bool:
        return self.do_pad and self.image_processor_type.startswith("LlavaImageProcessor")


def load_settings(model: ModelSpec, image_size: int) -> ClipSettings:
    """A checkpoint's settings, or CLIP's defaults for ``image_size`` if it has none. Raises StartupError."""
    crop = {"height": image_size, "width": image_size}
    found = settings.load_settings(model, ClipSettings, {"size": {"shortest_edge": image_size}, "crop_size": crop})
    if (made := output_size(found)) != (image_size, image_size):
        raise StartupError(
            f"{model.path}: the image processor makes {made} pixels, the vision tower takes {image_size}"
        )
    return found


def output_size(settings: ClipSettings) -> tuple[int, int] | None:
    """(height, width) of the pixels; None if it depends on the picture."""
    if settings.do_center_crop:
        return both_sides(settings.crop_size)
    return both_sides(settings.size) if settings.do_resize and not _shortest_edge(settings.size) else None


def _shortest_edge(size: EdgeSize | int) -> int | None:
    return size if isinstance(size, int) else size.shortest_edge


def both_sides(size: EdgeSize | int) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if size.height and size.width:
        return size.height, size.width
    return (size.shortest_edge, size.shortest_edge) if size.shortest_edge else None


def resized_size(settings: ClipSettings, width: int, height: int) -> tuple[int, int]:
    """(width, height) after padding and resizing. Raises MediaError if that exceeds MAX_WORKING_PIXELS."""
    if settings.pads_to_square:
        width = height = max(width, height)
        check_working_pixels((width, height))
    if settings.do_resize:
        if edge := _shortest_edge(settings.size):
            long = int(edge * max(width, height) / min(width, height))
            width, height = (edge, long) if width <= height else (long, edge)
        elif sides := both_sides(settings.size):
            height, width = sides
        check_working_pixels((width, height))
    return width, height


def view_plan(settings: ClipSettings, width: int, height: int) -> ViewPlan:
    """Padded, resized, cropped in the middle. Raises MediaError."""
    size = resized_size(settings, width, height)
    tile, edge = size, max(width, height)
    if settings.do_center_crop and (crop := both_sides(settings.crop_size)):
        tile = crop[1], crop[0]
    canvas = (edge, edge) if settings.pads_to_square and width != height else None
    cut = Cut(1, (size[0] - tile[0]) // 2, (size[1] - tile[1]) // 2)
    resizing = Resizing(0, size, canvas=canvas)
    return ViewPlan((width, height), (resizing,), (cut,), tile, settings.resample, background(settings))
