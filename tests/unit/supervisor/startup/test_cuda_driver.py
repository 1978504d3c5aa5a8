"""The CUDA driver is asked for GPUs; a driver without one, or one that fails, leads to the CPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmserve.supervisor.startup import cuda_driver, machine
from mmserve.supervisor.startup.cuda_driver import Gpus, ask, ask_in_child


class Driver:
    """Stands for libcuda: the results of its two functions."""

    def __init__(self, init: int = 0, get_count: int = 0, count: int = 0) -> None:
        self._init, self._get_count, self._count = init, get_count, count

    def cuInit(self, flags: int) -> int:
        return self._init

    def cuDeviceGetCount(self, count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int))[0] = self._count
        return self._get_count


def missing(name: str) -> Driver:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("load", "count", "problem"),
    [
        (lambda name: Driver(count=2), 2, ""),
        (lambda name: Driver(count=0), 0, "sees no GPU"),
        (lambda name: Driver(init=100), 0, "sees no GPU"),
        (lambda name: Driver(init=804), 0, "CUDA error 804"),
        (lambda name: Driver(get_count=3, count=1), 0, "CUDA error 3"),
        (missing, 0, "libcuda.so.1: cannot open"),
    ],
)
def test_the_drivers_answer(load: Callable[[str], Driver], count: int, problem: str) -> None:
    found = ask(load)
    assert found.num_gpus == count
    assert problem in found.problem
    assert bool(found.problem) == (count == 0)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print(2, '')", Gpus(2, "")),
        ("print(0, 'the CUDA driver sees no GPU')", Gpus(0, "the CUDA driver sees no GPU")),
        ("import os; os.abort()", Gpus(0, "the CUDA driver crashes (exit code -6)")),
        ("while True: pass", Gpus(0, "does not answer")),
    ],
)
def test_the_child_that_asks_may_fail(program: str, expected: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([command[0], "-c", program], **options))
    found = ask_in_child(within_s=0.3 if "while" in program else 60)
    assert found.num_gpus == expected.num_gpus
    assert expected.problem in found.problem


def test_the_child_runs_and_answers() -> None:
    assert sys.executable
    assert ask_in_child() == ask()


@pytest.mark.parametrize("gpus", [Gpus(1, ""), Gpus(0, "the CUDA driver sees no GPU")])
def test_a_driver_file_alone_is_no_gpu(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "_DRIVER_FILES", (str(tmp_path),))
    monkeypatch.setattr(machine, "_torch_has_cuda", lambda: True)
    monkeypatch.setattr(cuda_driver, "ask_in_child", lambda: gpus)
    found = machine.look()
    assert (found.has_cuda, found.cuda_problem) == (gpus.num_gpus > 0, gpus.problem)
    assert gpus.problem in caplog.text
