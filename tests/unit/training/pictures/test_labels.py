"""The oracle code: orthonormal directions that never move, and labels that say what the scene says."""

from __future__ import annotations

import numpy as np

from training.pictures import labels
from training.pictures.scenes import make_scene
from training.words.phrases import tally


def test_the_directions_are_orthonormal() -> None:
    rows = labels.basis()
    assert rows.shape == (labels.CODE, labels.WIDTH)
    assert np.abs(rows @ rows.T - np.eye(labels.CODE)).max() < 1e-5


def test_a_shape_is_told_how_many_are_like_it_and_nothing_else_is() -> None:
    for seed in range(60):
        scene = make_scene(seed)
        index = labels.indices(scene)
        for item in scene.shapes:
            assert index[6:, item.cell].tolist() == [
                tally(scene, item.colour, item.name),
                tally(scene, None, item.name),
                tally(scene, item.colour, None),
                len(scene.shapes),
            ]
        others = np.ones(index.shape[1], bool)
        others[[item.cell for item in scene.shapes]] = False
        assert not index[6:, others].any()


def test_the_code_can_be_read_back() -> None:
    scene = make_scene(3, "groups")
    code, index = labels.code(scene), labels.indices(scene)
    for channel, name in ((0, "kind"), (1, "colour"), (2, "size"), (5, "order")):
        assert (code[:, labels.GROUPS[name]].argmax(1) == index[channel]).all()
    for name in labels.TALLIES:
        part, expected = code[:, labels.GROUPS[name]], index[labels.CHANNELS.index(name)]
        assert (part.sum(1) == (expected > 0)).all()
        assert (part.argmax(1)[expected > 0] + 1 == expected[expected > 0]).all()
