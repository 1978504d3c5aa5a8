"""The command itself, as a process with limits of its own."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _doctor(*arguments: str, limits: Callable[[], object] | None = None, **environment: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mmserve", "doctor", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        preexec_fn=limits,
        env={**os.environ, **environment},
    )
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)} if done.stdout else done.stderr


def test_this_machine_is_looked_at_without_a_crash() -> None:
    code, findings = _doctor("--port", "0")
    assert {*findings} == {
        *("cpu", "memory", "shared memory", "huge pages", "descriptors", "processes", "system calls", "clock", "port"),
        *("disk", "python", "packages", "torch", "kernels", "gpu"),
    }
    assert all(row["do"] for row in findings.values() if row["status"] != "ok")
    assert "could not be checked" not in json.dumps(findings)
    assert code == any(row["status"] == "failure" for row in findings.values())


def test_small_limits_are_found() -> None:
    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
        resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))

    code, findings = _doctor("--only", "descriptors", "--only", "processes", limits=limits)
    assert code == 1
    assert {*findings} == {"descriptors", "processes"}
    assert findings["descriptors"]["status"] == "warning"
    assert "ulimit" in findings["descriptors"]["do"]
    assert (findings["processes"]["status"], "100" in findings["processes"]["found"]) == ("failure", True)


def test_a_warning_is_a_failure_if_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        only = ("--only", "port", "--port", str(taken.getsockname()[1]))
        code, findings = _doctor(*only)
        assert (code, findings["port"]["status"]) == (0, "warning")
        assert _doctor("--strict", *only)[0] == 1


def test_a_broken_torch_is_a_finding_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libtorch.so is broken')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, findings = _doctor("--only", "torch", "--only", "kernels", PYTHONPATH=path)
    assert code == 1
    assert "libtorch.so is broken" in findings["torch"]["found"]


def test_an_unknown_check_is_named() -> None:
    code, error = _doctor("--only", "colour")
    assert code == 2
    assert "colour" in error
