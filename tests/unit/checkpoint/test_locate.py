"""``--model`` is resolved to a packaged model, a directory or a download."""

from pathlib import Path

import pytest

from mmserve.checkpoint import locate as locate_module
from mmserve.checkpoint.locate import locate
from mmserve.runtime.errors import StartupError


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "packaged" / "llava"
    directory.mkdir(parents=True)
    (directory / "config.json").touch()
    monkeypatch.setattr(locate_module, "_PACKAGED", tmp_path / "packaged")
    return directory


def test_a_packaged_name_takes_precedence_over_a_directory(
    packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "llava").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert locate("llava") == packaged
    assert locate("./llava") == tmp_path / "here" / "llava"


def test_a_directory_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert locate(str(tmp_path / "link")) == tmp_path / "model"


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("model", ["no-such-model", "/no/such/dir", "./none", "../a", "a/b/c", "~/none-such"])
def test_an_unknown_model_is_refused_with_the_packaged_names(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(StartupError, match=r"packaged models \(llava\)"):
        locate(model)


def test_a_hub_failure_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(hub_id: str, **_: object) -> str:
        raise ConnectionError(f"cannot reach the hub for {hub_id}\nand a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(StartupError, match="fetching it from the hub failed: cannot reach") as caught:
        locate("some-owner/some-model")
    assert "\n" not in str(caught.value)


def test_only_needed_files_are_downloaded_from_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def fetch(hub_id: str, **options: object) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert locate("owner/model") == tmp_path
    assert asked["hub_id"] == "owner/model"
    assert "*.bin" not in str(asked["allow_patterns"])
    assert "merges.txt" in str(asked["allow_patterns"])
