from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.cli import main as cli
from mmserve.cluster.front import run
from mmserve.ipc.links import cluster_key
from mmserve.runtime.logs import log
from mmserve.supervisor.startup import listen, machine


def test_a_front_may_open_more_files_than_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes two, and there may be 4,096."""
    done: list[str] = []
    monkeypatch.setattr(log, "setup", lambda *_: None)
    monkeypatch.setattr(machine, "allow_descriptors", lambda: done.append("descriptors"))
    monkeypatch.setattr(listen, "listen", lambda *_: done.append("listen"))
    monkeypatch.setattr(run, "run", lambda *_: done.append("run"))
    cluster_key.make_if_missing(path := tmp_path / "key")
    assert cli.main(["front", "--replica", "http://a:8000", "--cluster-key-file", str(path)]) == 0
    assert done == ["descriptors", "listen", "run"]
