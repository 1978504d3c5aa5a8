"""``mmserve serve --replicas``: what each server, the front and Ray are told. Ray itself: tests/ray."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import mmserve.cluster.on_ray
from mmserve.cli import replicas
from mmserve.cli.replicas import options_of, serve_replicas
from mmserve.config.options import OptionError, resolve
from mmserve.runtime.errors import StartupError


def test_servers_get_the_options_that_are_not_the_fronts_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def run(*arguments: Any, **named: Any) -> int:
        called.append((arguments, named))
        return 7

    fake = SimpleNamespace(serve_replicas=run)
    monkeypatch.setitem(sys.modules, "mmserve.cluster.on_ray.run", fake)
    monkeypatch.setattr(mmserve.cluster.on_ray, "run", fake, raising=False)
    flags = {
        "replicas": "3",
        "min_replicas": "1",
        "ray_address": "auto",
        "port": "81",
        "host": "0.0.0.0",
        "api_key": "hunter2",
    }
    more = {"max_num_seqs": "9", "web_ui": "false", "served_model_name": "a,b", "allowed_origins": "https://a.example"}
    assert serve_replicas(resolve(flags | more, {}, None)) == 7
    ((count, options, environment, front), named) = called[0]
    assert count == (1, 3)
    assert named == {"port": 81, "address": "auto", "device": "auto", "tp": 1}
    assert sorted(options) == sorted(["--served-model-name", "a,b", "--max-num-seqs", "9", "--no-web-ui"])
    assert environment == {"MMSERVE_API_KEY": "hunter2"}
    assert front["host"] == "0.0.0.0"
    assert front["allowed_origins"] == ("https://a.example",)
    assert front["allowed_hosts"] == ("*",), "a server with a key answers to any name"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"allowed_hosts": "a.example"}, {"allowed_hosts": ("a.example",)}),
        ({"body_budget_mb": "2048"}, {"body_budget_mb": 2048.0}),
    ],
)
def test_the_front_has_what_was_asked_for(
    flags: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    fake = SimpleNamespace(serve_replicas=lambda count, options, environment, front, **named: told.append(front))
    monkeypatch.setitem(sys.modules, "mmserve.cluster.on_ray.run", fake)
    monkeypatch.setattr(mmserve.cluster.on_ray, "run", fake, raising=False)
    serve_replicas(resolve({"replicas": "2", **flags}, {}, None))
    assert expected.items() <= told[0].items()


def test_what_is_told_is_understood_again() -> None:
    config = resolve({"replicas": "2", "max_body_mb": "12.5", "served_model_name": "a,b"}, {}, None)
    words = options_of(config)
    again = resolve({"max_body_mb": words[words.index("--max-body-mb") + 1]}, {}, None)
    assert again.max_body_mb == 12.5
    assert words[words.index("--served-model-name") + 1] == "a,b"


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "set_for_own_ray", lambda: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "mmserve.cluster.on_ray.run", raising=False)
    with pytest.raises(StartupError, match=r"pip install 'mmserve\[ray\]'"):
        serve_replicas(resolve({"replicas": "2"}, {}, None))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"replicas": "2", "min_replicas": "3"}, "is more than --replicas 2"),
        ({"ray_address": "auto"}, "--ray-address auto needs --replicas"),
        ({"replicas": "2", "reports_endpoint": "tcp://127.0.0.1:1"}, "makes its own"),
    ],
)
def test_options_that_do_not_go_together(flags: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve(flags, {}, None)
