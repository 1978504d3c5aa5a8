"""Scenes: the same seed draws the same picture, and labels say what was drawn."""

import numpy as np
import pytest

from training.pictures import labels
from training.pictures.drawing import draw_scene
from training.pictures.scenes import clear_of_borders, make_scene
from training.pictures.world import CLASSES, COLOUR_NAMES, COLOURS, PATCHES


def test_same_seed_same_picture() -> None:
    first, second = make_scene(11), make_scene(11)
    assert first == second
    assert np.array_equal(np.asarray(draw_scene(first)), np.asarray(draw_scene(second)))
    assert make_scene(12) != first


@pytest.mark.parametrize("seed", range(40))
def test_centres_have_their_own_cells(seed: int) -> None:
    scene = make_scene(seed)
    cells = [item.cell for item in scene.items]
    assert len(set(cells)) == len(cells)
    assert all(0 <= cell < PATCHES for cell in cells)
    assert all(clear_of_borders(item.x, item.y) for item in scene.items)


@pytest.mark.parametrize("seed", range(40))
def test_the_pixel_at_a_shapes_centre_has_its_colour(seed: int) -> None:
    scene = make_scene(seed, "mix")
    picture = draw_scene(scene)
    for item in scene.shapes:
        pixel = picture.getpixel((int(item.x * scene.width), int(item.y * scene.height)))
        assert np.abs(np.array(pixel) - np.array(COLOURS[item.colour])).max() <= 14


def test_the_code_says_what_is_in_each_cell() -> None:
    scene = make_scene(3)
    code = labels.code(scene)
    assert code.shape == (PATCHES, labels.CODE)
    kinds = code[:, labels.GROUPS["kind"]].argmax(1)
    assert {(cell, CLASSES[kinds[cell]]) for cell in np.flatnonzero(kinds)} == {(i.cell, i.name) for i in scene.items}
    for item in scene.items:
        assert COLOUR_NAMES[code[item.cell, labels.GROUPS["colour"]].argmax() - 1] == item.colour
        middles = (np.arange(8) + 0.5) / 8
        assert code[item.cell, labels.GROUPS["x"]] @ middles == pytest.approx(
            min(max(item.x, 1 / 16), 15 / 16), abs=1e-5
        )


def test_the_code_directions_are_orthonormal() -> None:
    basis = labels.basis()
    assert np.allclose(basis @ basis.T, np.eye(labels.CODE), atol=1e-5)
