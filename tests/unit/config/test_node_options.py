"""The options of several nodes are checked before the server starts."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.config.node_options import Address, address_of, ranks_of
from mmserve.config.options import OptionError, resolve
from mmserve.runtime.errors import StartupError

NODES = {"nnodes": 2, "tp": 4, "head": "10.0.0.1", "cluster_key_file": "key"}


@pytest.mark.parametrize(
    ("text", "address", "endpoint"),
    [
        ("node0", Address("node0", 8100), "tcp://node0:8100"),
        ("10.0.0.1:99", Address("10.0.0.1", 99), "tcp://10.0.0.1:99"),
        ("[::1]:99", Address("::1", 99), "tcp://[::1]:99"),
    ],
)
def test_addresses(text: str, address: Address, endpoint: str) -> None:
    assert address_of("--head", text) == address
    assert address.endpoint == endpoint


@pytest.mark.parametrize("text", ["", ":99", "a:0", "a:70000", "a:x", "http://a", "me@a", "a/b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match=r"--head .*is no address: write it as HOST:PORT"):
        address_of("--head", text)


def test_ranks_are_divided_equally() -> None:
    config = resolve(NODES, {}, None)
    assert [list(ranks_of(config, node)) for node in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_rank": 2}, "--node-rank 2 is not below --nnodes 2"),
        ({"head": None}, "needs --head"),
        ({"cluster_key_file": None}, "needs --cluster-key-file"),
        ({"tp": 3}, "--tp 3 does not divide by --nnodes 2"),
        ({"nnodes": 1}, "--head needs --nnodes"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    flags = {name: value for name, value in (NODES | changes).items() if value is not None}
    with pytest.raises(OptionError, match=message):
        resolve(flags, {}, None)


def test_encoders_need_a_key() -> None:
    for option in ("encoders", "join"):
        with pytest.raises(OptionError, match=f"--{option} needs --cluster-key-file"):
            resolve({option: "10.0.0.1"}, {}, None)
        assert resolve({option: "10.0.0.1", "cluster_key_file": "key"}, {}, None)
    with pytest.raises(OptionError, match="--join is of mmserve encoder"):
        resolve({"join": "a", "encoders": "b", "cluster_key_file": "key"}, {}, None)
