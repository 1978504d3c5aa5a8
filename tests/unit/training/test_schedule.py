"""The schedule's bars and the curves' picture: what stages say is shown, half a line or a nonsense line is not."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tqdm import tqdm

from training import curves, schedule


def test_curves_of_a_run_that_is_still_writing(tmp_path: Path) -> None:
    rows = [{"step": 0, "loss": 4.0}, {"step": 20, "loss": 2.0}, {"step": 20, "held_out": {"colour": 0.5, "all": 0.25}}]
    (tmp_path / "eye.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 4')
    text = curves.draw(tmp_path).read_text()
    assert text.count("<polyline") == 3
    assert "colour 0.50" in text
    assert not (tmp_path / "curves.partial").exists()


def test_a_resumed_stage_starts_its_bar_where_it_was() -> None:
    with tqdm(total=100, disable=False, file=io.StringIO()) as bar:
        schedule.show(bar, '{"step": 59, "loss": 1.5}')
        assert (bar.n, bar.initial) == (60, 60)
        schedule.show(bar, "not json")
        schedule.show(bar, '{"step": 79, "held_out": {"all": 0.5}}')
        assert (bar.n, bar.initial) == (80, 60)


def test_every_stage_gets_its_steps_and_the_options() -> None:
    options = argparse.Namespace(out=Path("o"), scale=0.5, check=3, device="cpu", compile=False)
    stages = [*schedule.BESIDE, *schedule.AFTER]
    assert [stage.module for stage in stages] == ["eye", "language", "tally", "joint", "tools"]
    for stage in stages:
        said = schedule.command(stage, options)
        assert said[said.index("--steps") + 1] == str(round(stage.steps / 2))
        assert "--no-compile" in said


SAYS_AND_SLEEPS = "import time; print('{\"step\": 1}', flush=True); time.sleep(600)"
DRAWS_AS_WELL = f"import subprocess; subprocess.Popen(['sleep', '600']); {SAYS_AND_SLEEPS}"


@pytest.mark.parametrize("program", [SAYS_AND_SLEEPS, DRAWS_AS_WELL])
def test_stopping_ends_the_stages_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(schedule, "command", lambda *_: [sys.executable, "-c", program])
    begun = threading.Event()
    monkeypatch.setattr(schedule, "show", lambda *_: begun.set())
    options = argparse.Namespace(out=tmp_path, scale=1.0)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(schedule.follow, schedule.AFTER[0], 0, 1, options)
        assert begun.wait(30)
        schedule.stop()
        with pytest.raises(schedule.Failed):
            following.result(30)
    assert not schedule.RUNNING
