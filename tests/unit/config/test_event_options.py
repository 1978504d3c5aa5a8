"""The options of KV events are checked before the server starts."""

from __future__ import annotations

import pytest

from mmserve.config.options import OptionError, resolve

ENDPOINT = "tcp://127.0.0.1:5557"


def test_events_are_off_unless_asked_for() -> None:
    assert resolve({}, {}, None).kv_events_endpoint is None


@pytest.mark.parametrize("endpoint", ["tcp://*:5557", "tcp://[::1]:5557", "tcp://0.0.0.0:1", "tcp://pod.example:65535"])
def test_endpoints(endpoint: str) -> None:
    assert resolve({"kv_events_endpoint": endpoint}, {}, None).kv_events_endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint", ["5557", "tcp://127.0.0.1", "tcp://:5557", "tcp://a:0", "tcp://a:70000", "http://a:1", "tcp://a:1/x"]
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"--kv-events-endpoint .* is no address to listen on"):
        resolve({"kv_events_endpoint": endpoint}, {}, None)
    with pytest.raises(OptionError, match=r"--kv-events-replay-endpoint .* is no address to listen on"):
        resolve({"kv_events_endpoint": ENDPOINT, "kv_events_replay_endpoint": endpoint}, {}, None)


def test_two_sockets_need_two_ports() -> None:
    with pytest.raises(OptionError, match="are both port 5557"):
        resolve({"kv_events_endpoint": ENDPOINT, "kv_events_replay_endpoint": ENDPOINT}, {}, None)


@pytest.mark.parametrize("option", ["kv_events_replay_endpoint", "kv_events_topic"])
def test_nothing_is_published_without_an_endpoint(option: str) -> None:
    with pytest.raises(OptionError, match="needs --kv-events-endpoint"):
        resolve({option: "tcp://127.0.0.1:1"}, {}, None)


@pytest.mark.parametrize("endpoint", ["5557", "tcp://127.0.0.1", "tcp://a:65535"])
def test_embedding_events_need_an_address_with_a_next_port(endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"--embedding-events-endpoint .* is no address to listen on"):
        resolve({"embedding_events_endpoint": endpoint}, {}, None)


@pytest.mark.parametrize("endpoint", [ENDPOINT, "tcp://127.0.0.1:5556"])
def test_embedding_events_take_no_port_of_others(endpoint: str) -> None:
    with pytest.raises(OptionError, match="takes port 5557"):
        resolve({"kv_events_endpoint": ENDPOINT, "embedding_events_endpoint": endpoint}, {}, None)
