"""Only a deployment that computes with the kernels builds them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from mmserve.supervisor.startup.kernel_build import building
from tests.fakes.http.http_services import make_deployment


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "bfloat16"), ("cuda", "float32"), ("cpu", "float16")])
def test_nothing_is_built_that_is_not_used(
    device: Literal["cpu", "cuda"],
    dtype: Literal["float32", "bfloat16", "float16"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: pytest.fail("built for nothing"))
    with building(replace(make_deployment(str(tmp_path)), device=device, dtype=dtype)):
        pass


def test_the_level_is_that_of_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        commands.append(command)
        return started(["true"])

    started, deployment = subprocess.Popen, make_deployment(str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", start)
    with building(replace(deployment, config=replace(deployment.config, kernel_level="avx512"))):
        pass
    assert [command[-1] for command in commands] == ["avx512"]
