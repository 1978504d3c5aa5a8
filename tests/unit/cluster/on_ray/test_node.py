"""The server that an actor starts. Ray itself takes no part."""

from __future__ import annotations

import errno
import importlib
import os
import re
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_SERVER = """#!/bin/sh
echo "mmserve is ready: http://gpu-$CUDA_VISIBLE_DEVICES-threads-${OMP_NUM_THREADS-of-its-own}-key-$MMSERVE_API_KEY"
exec sleep 60
"""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module. Where Ray is not installed, it gets empty modules for it."""
    ours = [f"mmserve.cluster.on_ray.{name}" for name in ("node", "autoscaling")]
    if find_spec("ray") is None:
        for name in ("ray", "ray.serve", "ray.serve.config"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules["ray.serve.config"], "AutoscalingContext", object, raising=False)
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(ours[0])
    for name in ours:
        sys.modules.pop(name, None)


def test_a_server_has_the_gpus_that_ray_gave_its_actor(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray names them in the actor's environment."""
    program = tmp_path / "python"
    program.write_text(_SERVER)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with node._server(["--model", "llava"], {"MMSERVE_API_KEY": "k"}) as server:
        assert server.url == "http://gpu-5-threads-of-its-own-key-k"


def test_replicas_are_named_by_addresses_as_machines_may_have_one_name_and_get_their_names_again(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    with node._place("10.0.0.1") as first, node._place("10.0.0.1") as second:
        assert first != second
    with node._place("10.0.0.2") as other:
        assert other != first
    with node._place("10.0.0.1") as again:
        assert again == first


def _ephemeral_ports(text: str, node: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setattr(node, "_EPHEMERAL_PORTS", path)


def test_the_port_of_reports_is_none_that_the_kernel_gives_to_connections(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a port could be a connection's by the time the router binds it."""
    _ephemeral_ports("32768\t60999\n", node, tmp_path / "ports", monkeypatch)
    assert 20_000 <= node._free_port("127.0.0.1") < 32_768


def test_a_port_in_use_is_not_given(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setattr(node.random, "sample", lambda *_: [port])
        assert node._free_port("127.0.0.1") != port


def test_where_the_kernel_gives_all_ports_to_connections_one_of_them_is_used(
    node: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ephemeral_ports("1024\t65535\n", node, tmp_path / "ports", monkeypatch)
    assert node._free_port("127.0.0.1") >= 1024


def test_an_address_of_another_machine_is_named_as_what_it_is(node: Any) -> None:
    with pytest.raises(OSError, match=re.escape(os.strerror(errno.EADDRNOTAVAIL))):
        node._free_port("192.0.2.1")
