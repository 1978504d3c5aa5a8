"""The GPU battery loses nothing by a check that fails, ends its process or never ends; and its command runs."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.plan import Step
from benchmarks.gpu.results import result_of
from benchmarks.gpu.supervise import run_step

STEP = Step(2, "fails", 30, "tests.fakes.devices.gpu_steps")


def run(folder: Path, *ways: str, seconds: float = 30) -> dict[str, Any]:
    settings = Settings(device="cpu", earlier=str(folder), only_families=ways)
    return result_of(STEP, run_step(STEP, settings, folder, seconds))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("battery")
    return run(folder) | {"folder": folder}


def test_every_check_has_a_verdict(result: dict[str, Any]) -> None:
    found = {check["name"]: (check["verdict"], check.get("reason", "")) for check in result["checks"]}
    assert found["good"] == found["good at the end"] == ("pass", "")
    assert found["wrong"] == ("fail", "AssertionError: two is not three")
    assert found["skipped"] == ("skipped", "needs a moon")
    assert found["missing"] == ("skipped", "needs a_package_that_is_not_there")
    assert found["own missing"][0] == "fail"
    assert found["exits"][0] == "fail"
    assert "exit status 3" in found["exits"][1]
    assert found["killed"][0] == "fail"
    assert "SIGKILL" in found["killed"][1]
    assert found["hangs"][0] == "fail"
    assert len(found) == 9
    assert (result["verdict"], result["reason"][:22]) == ("fail", "2 of 9 checks passed; ")


def test_no_check_is_made_again_after_one_that_ended_the_process(result: dict[str, Any]) -> None:
    assert (result["folder"] / "made").read_text() == "x"


def test_where_a_check_hung_is_in_the_log(result: dict[str, Any]) -> None:
    assert "gpu_steps.py" in (result["folder"] / "step-2.log").read_text()


def test_a_step_whose_time_is_over_keeps_its_verdicts_and_leaves_no_process(tmp_path: Path) -> None:
    for seconds in (2, 8, 32):  # longer where the machine is too busy to begin the check that never ends
        folder = tmp_path / str(seconds)
        folder.mkdir()
        found = run(folder, "hang", seconds=seconds)
        if len(found["checks"]) == 2:
            break
    assert found["verdict"] == "timed out"
    assert [(check["name"], check["verdict"]) for check in found["checks"]] == [
        ("good", "pass"),
        ("never", "timed out"),
    ]
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for the end of the process that the step has left behind


def test_a_step_that_cannot_begin(tmp_path: Path) -> None:
    found = run(tmp_path, "import")
    assert found["verdict"] == "fail"
    assert found["reason"].startswith("ended with exit status 1: RuntimeError: nothing can be prepared")


def test_several_processes_make_a_step_and_one_what_they_leave(tmp_path: Path) -> None:
    settings = Settings(earlier=str(tmp_path), only_families=("together",))
    found = result_of(STEP, run_step(STEP._replace(processes=2), settings, tmp_path, 30))
    assert (found["verdict"], found["reason"]) == ("pass", "8 of 8 checks passed")
    made = {check["name"]: (tmp_path / check["name"]).read_text().split() for check in found["checks"]}
    assert {name: len(made[name]) for name in made} == dict.fromkeys(made, 1) | {
        "by all": 2,
        "fails at first": 2,
        "ends at first": 2,
    }
    last = made["timed"][0]
    assert last not in made["by all"]
    assert {name for name in made if last in made[name]} == {"timed", "fails at first", "ends at first"}
    assert len({made[name][0] for name in ("first", "second")}) == 2, "each made a part"


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("msgspec", "httptools", "zmq", "httpx2", "rpyc", "llguidance"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""A machine without packages that mmserve needs."""


def test_the_command_where_packages_are_missing(tmp_path: Path) -> None:
    """Facts of this machine come all the same; the step that needs the packages is skipped and says so."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    results = tmp_path / "results"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--only", "0,2", "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert "| 0 environment | pass |" in done.stdout
    assert "needs msgspec" in done.stdout
    written = json.loads((results / "battery.json").read_text())
    assert [step["verdict"] for step in written["steps"]] == ["pass", "skipped"]
    packages = next(check for check in written["steps"][0]["checks"] if check["name"] == "packages")
    assert "httptools" in packages["figures"]["missing for the server"]
    assert {path.name for path in results.iterdir()} == {"battery.json", "battery.log"}


def test_without_a_gpu_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", "1", "--results", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 1
    assert "needs a GPU that torch can use" in done.stdout


def test_the_whole_server_and_faults(tmp_path: Path) -> None:
    """The dry run of the steps that start servers."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--only", "6,7,8", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + (tmp_path / "battery.log").read_text()
    written = json.loads((tmp_path / "battery.json").read_text())
    skipped = [check["name"] for step in written["steps"] for check in step["checks"] if check["verdict"] == "skipped"]
    assert skipped == ["memory taken by others"], "only a GPU has that"
    assert [step["verdict"] for step in written["steps"]] == ["pass", "pass"]
    goals = {goal["goal"]: goal["met"] for goal in written["goals"]}
    assert goals["starts a second of a server with graphs, for one in 30 s"] != "not measured"
    assert goals["8B, decode at batch 1, of the floor"] == "not measured"
