"""The secret of several machines: who may read its file, and that all derive the same keys from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.ipc.links import cluster_key
from mmserve.runtime.errors import StartupError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    assert cluster_key.make_if_missing(path)
    return path


def test_the_file_is_made_once_and_for_its_owner(path: Path) -> None:
    text = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert not cluster_key.make_if_missing(path)
    assert path.read_bytes() == text


def test_a_copy_gives_the_same_keys_and_another_file_others(path: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    cluster_key.make_if_missing(other)
    assert cluster_key.read(copy) == cluster_key.read(path)
    keys = [cluster_key.read(file) for file in (path, other)]
    secrets = [(key.secret, key.encoders, key.fronts, key.listening.secret, key.connecting.secret) for key in keys]
    assert len(set().union(*secrets)) == 10
    assert keys[0].hash_seed != keys[1].hash_seed
    assert not [each for each in secrets[0] if repr(each) in repr(keys[0])], "what is printed shows no secret"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_use_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(StartupError, match="may be used by other users: chmod 600"):
        cluster_key.read(path)


def test_a_missing_file_and_one_that_is_no_key_are_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(StartupError, match="is no key file"):
        cluster_key.read(path)
    path.unlink()
    with pytest.raises(StartupError, match="does not exist: copy it from the first machine"):
        cluster_key.read(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be made: No such file"):
        cluster_key.make_if_missing(tmp_path / "no" / "key")
