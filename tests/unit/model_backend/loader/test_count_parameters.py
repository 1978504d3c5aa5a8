"""Parameters counted from config.json are those of the weight files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.checkpoint.load import load
from mmserve.checkpoint.registry import TEXT
from mmserve.model_backend.loader.count_parameters import count
from mmserve.supervisor.startup.weight_memory import part_nbytes
from tests.fakes.models.checkpoints import make_llama, make_text
from tests.fakes.models.picture_families import PICTURE_FAMILIES


@pytest.mark.parametrize("family", sorted({*TEXT.values()}))
def test_text_families(family: str, tmp_path: Path) -> None:
    model = load(make_llama(tmp_path) if family == "llama" else make_text(tmp_path, family))
    assert count(model) == tuple(nbytes // 4 for nbytes in part_nbytes(model, "float32"))


@pytest.mark.parametrize("family", PICTURE_FAMILIES)
def test_picture_families(family: str, tmp_path: Path) -> None:
    model = load(PICTURE_FAMILIES[family].make(tmp_path))
    text, tower = (nbytes // 4 for nbytes in part_nbytes(model, "float32"))
    counted_text, counted_tower = count(model)
    assert counted_text == text
    # The files may hold layers of the tower that no picture passes through.
    assert 0.6 * tower < counted_tower <= tower
