"""What is said about torch, kernels and GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mmserve.cli.doctor import software_checks
from mmserve.cli.doctor.probe import driver_version
from mmserve.cli.doctor.software_checks import gpu_finding, kernels_finding, torch_finding

GIB = 1 << 30


def _torch(version: str = "2.13.0+cpu") -> dict[str, Any]:
    return {"torch": {"version": version, "cuda": None, "gpus": []}}


def _kernels(**changed: Any) -> dict[str, Any]:
    kernels = {"level": "avx2", "source": "wheel", "compilers": ["/usr/bin/c++"], "correct": True}
    kernels |= {"levels": ["avx2"], "refuses_tiles": False}
    return {"kernels": {**kernels, "measured": 12, "faster": [(1, 64, 96, 4, 0.2)], **changed}}


def _gpu(*peers: int) -> dict[str, Any]:
    return {"name": "H100", "free": 70 * GIB, "total": 80 * GIB, "capability": "9.0", "peers": list(peers)}


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.13.0+cpu", "ok"), ("2.11.1", "ok"), ("2.10.0", "warning"), ("2.14.0.dev20270101", "warning")],
)
def test_a_torch_that_was_not_tested_is_a_warning(version: str, status: str) -> None:
    assert torch_finding(_torch(version), 2).status == status


def test_the_threads_are_those_of_the_server_on_a_cpu() -> None:
    assert "computes with 1 thread (" in torch_finding(_torch(), 1).found
    with_gpu = {"torch": {**_torch()["torch"], "gpus": [_gpu()]}}
    assert "thread" not in torch_finding(with_gpu, 1).found


def test_a_broken_torch_is_a_line_that_says_what_to_do() -> None:
    for probe in ({"torch": {"error": "libgomp.so.1: no such file"}}, {"error": "torch ends Python with code -11: "}):
        finding = torch_finding(probe, 2)
        assert finding.status == "failure"
        assert "pip install" in finding.do


@pytest.mark.parametrize(
    ("probe", "status", "words"),
    [
        (_kernels(), "ok", "from the wheel"),
        (
            _kernels(),
            "ok",
            "12 products measured, 1 of them faster in another way than usual (64 x 96 with 4 rows by 20%)",
        ),
        (
            _kernels(faster=[[1, 64, 64, rows, rows / 100] for rows in (8, 4, 16, 1)]),
            "ok",
            "4 of them faster in another way than usual (64 x 64 with 16 rows by 16%, 64 x 64 with 8 rows by 8%, "
            "64 x 64 with 4 rows by 4%)",
        ),
        (_kernels(faster=[]), "ok", "0 of them faster in another way than usual"),
        (_kernels(measured=0, faster=[]), "ok", "checked against torch"),
        (_kernels(source="", correct=None), "ok", "/usr/bin/c++"),
        (_kernels(source="", correct=None, compilers=[]), "warning", "no compiler"),
        (_kernels(correct=False), "warning", "wrong numbers"),
        (
            _kernels(levels=["avx512", "avx2"]),
            "warning",
            "level avx2 of avx512, avx2: faster ones compute wrong numbers",
        ),
        (_kernels(refuses_tiles=True), "warning", "tile registers"),
        ({"error": "took too long"}, "failure", "took too long"),
    ],
)
def test_kernels(probe: dict[str, Any], status: str, words: str) -> None:
    finding = kernels_finding(probe)
    assert (finding.status, words in finding.found) == (status, True)


def test_gpus_are_named_with_their_memory() -> None:
    finding = gpu_finding({"torch": {"gpus": [_gpu(1), _gpu(0)]}}, "")
    assert finding.status == "ok"
    assert "H100 (compute 9.0), 70.0 of 80.0 GiB free" in finding.found
    assert gpu_finding({"torch": {"gpus": [_gpu(1), _gpu()]}}, "").status == "warning"
    old = gpu_finding({"torch": {"gpus": [_gpu(1), _gpu(0) | {"capability": "7.5"}]}}, "")
    assert old.status == "warning"
    assert "compute capability 7.5, and bfloat16 begins with 8.0, so --dtype auto is float16" in old.found


@pytest.mark.parametrize(
    "kind", ["NVIDIA UNIX x86_64 Kernel Module  570.124.06", "NVIDIA UNIX Open Kernel Module for x86_64  570.124.06"]
)
def test_the_driver_is_named_with_its_version(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "version"
    file.write_text(f"NVRM version: {kind}  Release Build\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    version = driver_version(file)
    assert version == "570.124.06"
    assert "driver 570.124.06: H100" in gpu_finding({"torch": {"gpus": [_gpu()], "driver": version}}, "").found
    assert driver_version(tmp_path / "none") is None


def test_a_python_of_another_version_than_the_tests_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    python = next(check for check in software_checks.checks() if check.name == "python")
    monkeypatch.setattr(software_checks, "_TESTED_PYTHON", sys.version_info[:2])
    assert "tests" not in python.run().found
    monkeypatch.setattr(software_checks, "_TESTED_PYTHON", (3, 2))
    assert "all tests ran with 3.2" in python.run().found


def test_a_gpu_that_cannot_be_used_is_a_warning_and_no_gpu_is_none() -> None:
    assert gpu_finding(_torch(), "there is no NVIDIA driver").status == "ok"
    assert gpu_finding(_torch(), "this torch is a CPU build").status == "warning"


def test_packages_outside_their_range_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = next(check for check in software_checks.checks() if check.name == "packages")
    assert packages.run().status == "ok"
    needs = ["torch>=99", "no-such-package>=1", "numpy>=1", "openai>=99; extra == 'dev'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needs)
    finding = packages.run()
    assert finding.status == "failure"
    assert finding.found.startswith("torch 2.")
    assert "no-such-package is missing" in finding.found
    assert "numpy" not in finding.found
