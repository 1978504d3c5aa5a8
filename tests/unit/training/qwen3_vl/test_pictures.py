"""Training's pictures and labels are what transformers' processor and the model make of the same scene."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import transformers
from PIL import Image

from training.pictures import labels
from training.pictures.scenes import Item, Scene
from training.pictures.world import COLOUR_NAMES, SHAPES
from training.qwen3_vl import pictures, shape
from training.words.phrases import tally


@pytest.mark.parametrize(("width", "height"), [(130, 130), (240, 120), (111, 219), (700, 520)])
def test_patches_equal_those_of_the_image_processor(width: int, height: int) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    patches, (rows, columns) = pictures.patches(image)
    settings = {name: value for name, value in shape.processor().items() if name != "image_processor_type"}
    expected = transformers.Qwen2VLImageProcessorPil(**settings)([image], return_tensors="pt")
    assert expected["image_grid_thw"].tolist() == [[1, 2 * rows, 2 * columns]]
    found = pictures.pixels(torch.from_numpy(patches))
    torch.testing.assert_close(found, expected["pixel_values"].float(), atol=1e-5, rtol=0)


def test_grids_keep_to_the_limits_and_differ() -> None:
    grids = {shape.grid_of(made.width, made.height) for made in map(pictures.scene, range(60))}
    assert len(grids) > 5
    assert all(shape.LEAST <= rows * columns <= shape.MOST for rows, columns in grids)


def test_a_shape_is_labelled_in_the_cell_of_its_centre() -> None:
    scene = Scene(240, 120, "white", "plain", 0)
    scene.shapes = [
        Item("star", "red", "small", 0.9, 0.1, 0.05, 0.1),
        Item("star", "blue", "large", 0.1, 0.9, 0.1, 0.2),
    ]
    grid = rows, columns = shape.grid_of(240, 120)
    index = pictures.indices(scene, grid).reshape(-1, rows, columns)
    star, red, blue = SHAPES.index("star") + 1, COLOUR_NAMES.index("red") + 1, COLOUR_NAMES.index("blue") + 1
    assert index[:, 0, int(0.9 * columns)].tolist() == [star, red, 1, 1, 2, 1, 2]
    assert index[:, int(0.9 * rows), int(0.1 * columns)].tolist() == [star, blue, 2, 1, 2, 1, 2]
    assert (index[0] > 0).sum() == 2
    middles = pictures.centres(scene, grid).reshape(rows, columns, 2, 2).transpose(0, 2, 1, 3).reshape(2 * rows, -1)
    found = {(int(y), int(x)) for y, x in np.argwhere(middles)}
    assert found == {(int(y * 2 * rows), int(x * 2 * columns)) for y, x in ((0.1, 0.9), (0.9, 0.1))}


def test_streams_hold_every_group_of_the_code_once() -> None:
    scene = pictures.scene(3)
    grid = shape.grid_of(scene.width, scene.height)
    index, basis = pictures.indices(scene, grid), torch.from_numpy(labels.basis())
    code = torch.from_numpy(pictures.code(index, 2))
    streams = pictures.streams(code, basis)
    torch.testing.assert_close(sum(streams) @ basis.T, code, atol=1e-5, rtol=0)
    assert index[CHANNEL["total"]].max() == tally(scene, None, None)
    assert (streams[1] @ basis[labels.GROUPS["colour"]].T).argmax(-1).tolist() == index[CHANNEL["colour"]].tolist()


CHANNEL = {name: number for number, name in enumerate(pictures.CHANNELS)}
