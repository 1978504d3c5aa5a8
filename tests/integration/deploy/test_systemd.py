"""The systemd unit, judged by systemd's own tool, which needs no running systemd."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from mmserve.cli.main import USAGE_ERROR
from mmserve.config.config import Config
from mmserve.config.options import OPTIONS

UNIT = Path(__file__).parents[3] / "deploy/mmserve.service"
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@needs_systemd
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # The program must exist; that of the unit is installed by its user.
    unit.write_text(UNIT.read_text().replace("/opt/mmserve/bin/mmserve", shutil.which("true") or ""))
    found = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


@needs_systemd
def test_little_of_the_machine_is_exposed() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", UNIT]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout  # 2.0 of 10


def _service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_it_waits_for_live_requests_and_signals_the_supervisor_alone() -> None:
    service = _service()
    assert int(service["TimeoutStopSec"]) > Config().shutdown_timeout
    assert service["KillMode"] == "mixed"


def test_a_wrong_option_is_not_tried_again() -> None:
    assert _service()["RestartPreventExitStatus"] == str(USAGE_ERROR)


def test_the_variables_that_it_names_are_options() -> None:
    words = UNIT.read_text().replace("=", " ").split()
    named = {word for word in words if word.startswith("MMSERVE_")}
    assert named == {"MMSERVE_MODEL", "MMSERVE_API_KEY_FILE"}
    assert named <= {option.env for option in OPTIONS.values()}
