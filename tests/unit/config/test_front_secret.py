from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.config.front_secret import load_front_secret
from mmserve.config.options import OptionError, resolve
from mmserve.runtime.errors import StartupError


def test_the_secret_is_the_files_text(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("ab" * 16 + "\n")
    assert load_front_secret(str(path)) == b"ab" * 16


def test_a_short_secret_and_a_missing_file_are_refused_and_nothing_of_the_secret_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hunter2")
    with pytest.raises(StartupError, match="has 7 characters: give it 32") as refused:
        load_front_secret(str(path))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        resolve({"front_secret_file": str(tmp_path / "none")}, {}, None)
