"""``mmserve plan`` before and after a download, for this machine and for others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmserve.cli import main as cli
from tests.fakes.models.checkpoints import make_llama


def _plan(capsys: pytest.CaptureFixture[str], model: object, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = cli.main(["plan", "--model", str(model), "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_config_json_alone_says_what_the_weights_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_llama(tmp_path)
    with_weights = _plan(capsys, directory, "--memory-gb", "4")[1]
    (directory / "model.safetensors").unlink()
    code, without = _plan(capsys, directory, "--memory-gb", "4")
    assert code == 0
    for found in (with_weights, without):
        del found["speeds"]  # of a rate that is measured
    assert without == with_weights


def test_a_small_container_says_that_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _plan(capsys, "llava", "--memory-gb", "1")
    assert (code, found["kv_tokens"]) == (1, 0)
    assert cli.main(["plan", "--model", "llava", "--memory-gb", "1"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert _plan(capsys, "llava", "--memory-gb", "2")[0] == 0


def test_the_report_names_what_people_forget(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--model", "llava", "--gpu", "h200", "--tp", "2"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"requests +[\d,]+ at once with 1,024 tokens each, 8 of the largest pictures included", printed)
    for words in ("H200, 131.3 GiB on each of 2", "of KV cache while its request is served", "--model llava --tp 2"):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--gpu", "gtx"), "known are"), (("--tp", "3"), "--tp can be"), (("--model", "no/such"), "no/such")],
)
def test_what_cannot_be_planned_is_said(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main(["plan", "--model", "llava", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_a_quantised_checkpoint_without_its_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = make_llama(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "sym": True,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").unlink()
    assert cli.main(["plan", "--model", str(directory)]) == 1
    assert "quantised" in capsys.readouterr().err
