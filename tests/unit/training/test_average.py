"""The mean of two ends of the join: of their text models, with the one eye that they have in common."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training import common
from training.average import mean


def end(path: Path, eye: float, text: float) -> Path:
    common.save(path, {"eye": {"a": torch.full((2,), eye)}, "text": {"b": torch.full((3,), text)}, "step": 7})
    return path


def test_texts_are_averaged_and_the_eye_is_kept(tmp_path: Path) -> None:
    found = mean([end(tmp_path / "one.pt", 5.0, 1.0), end(tmp_path / "other.pt", 5.0, 2.0)])
    assert set(found) == {"eye", "text"}
    assert torch.equal(found["eye"]["a"], torch.full((2,), 5.0))
    assert torch.equal(found["text"]["b"], torch.full((3,), 1.5))


def test_ends_with_different_eyes_have_no_mean(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="different eyes"):
        mean([end(tmp_path / "one.pt", 5.0, 1.0), end(tmp_path / "other.pt", 6.0, 1.0)])
