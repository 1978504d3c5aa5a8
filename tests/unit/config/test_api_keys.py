"""The file of API keys: what a line says, and that no error shows a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.config.api_keys import AREAS, digest_of, load_api_keys
from mmserve.config.config import Config
from mmserve.config.options import OptionError, resolve


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys"
    path.write_text(text)
    return str(path)


def test_a_line_names_a_key_and_what_it_opens(tmp_path: Path) -> None:
    path = _file(tmp_path, "# clients\nalice a-key\n\n  bob\tb-key  api,metrics\nops o-key admin\nroot r-key all\n")
    keys = load_api_keys(Config(api_key="single", api_key_file=path))
    assert [(key.name, key.areas) for key in keys] == [
        ("api-key", AREAS),
        ("alice", {"api"}),
        ("bob", {"api", "metrics"}),
        ("ops", {"admin"}),
        ("root", AREAS),
    ]
    assert [key.digest for key in keys[:2]] == [digest_of("single"), digest_of("a-key")]
    assert load_api_keys(Config()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "s3cret",
        "alice s3cret admin extra",
        "alice s3cret root",
        "alice s3cret api,",
        "al/ice s3cret",
        "a" * 65 + " s3cret",
        "alice s3cret\nalice other",
        "alice s3cret\nbob s3cret",
        "api-key s3cret",
        "alice single-s3cret",
        "# nothing",
        "",
        "".join(f"name{number} s3cret{number}\n" for number in range(1001)),
    ],
)
def test_a_wrong_file_is_refused_at_the_start_without_showing_a_key(tmp_path: Path, text: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(OptionError, match="api-key-file") as refused:
        resolve({"api_key": "single-s3cret", "api_key_file": path}, {}, None)
    assert "s3cret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in ("missing", "binary", "."):
        with pytest.raises(OptionError, match="cannot be read"):
            resolve({"api_key_file": str(tmp_path / path)}, {}, None)


def test_a_wrong_key_in_a_config_file_is_not_shown(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("api_key: [s3cret]\n")
    with pytest.raises(OptionError) as refused:
        resolve({}, {}, str(config))
    assert "s3cret" not in str(refused.value)


def test_an_allowed_origin_has_a_scheme() -> None:
    for origin in ("example.com", "https://", "https://a/b"):
        with pytest.raises(OptionError, match="allowed-origins"):
            resolve({"allowed_origins": [origin]}, {}, None)
    assert resolve({"allowed_origins": "https://a.example, *"}, {}, None).allowed_origins == ("https://a.example", "*")
