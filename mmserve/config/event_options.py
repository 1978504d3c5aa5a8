"""Checks the options of events: --kv-events-*, --embedding-events-endpoint and --reports-endpoint."""

from __future__ import annotations

from urllib.parse import urlsplit

from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError

_MAX_PORT = 65535
_OTHERS = ("kv_events_replay_endpoint", "kv_events_topic")


def check_kv_events(config: Config) -> None:
    """Refuse endpoints that are none, and options without an endpoint. Raises StartupError."""
    flags = ["--kv-events-endpoint", "--kv-events-replay-endpoint"]
    endpoints = [config.kv_events_endpoint, config.kv_events_replay_endpoint]
    if config.kv_events_endpoint is None:
        for name in _OTHERS:
            if getattr(config, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise StartupError(f"{flag} needs --kv-events-endpoint: without it there are no events")
        return
    for flag, endpoint in zip(flags, endpoints, strict=True):
        if endpoint is not None and not _is_endpoint(endpoint):
            raise StartupError(f"{flag} {endpoint} is no address to listen on: write it as tcp://127.0.0.1:5557")
    ports = [urlsplit(endpoint).port for endpoint in endpoints if endpoint is not None]
    if len(set(ports)) < len(ports):
        raise StartupError(f"--kv-events-endpoint and --kv-events-replay-endpoint are both port {ports[0]}")


def check_embedding_events(config: Config) -> None:
    """Refuse an endpoint that is none, or whose next port is none or taken. Raises StartupError."""
    endpoint = config.embedding_events_endpoint
    if endpoint is None:
        return
    if not _is_endpoint(endpoint) or urlsplit(endpoint).port == _MAX_PORT:
        raise StartupError(
            f"--embedding-events-endpoint {endpoint} is no address to listen on: write it as tcp://127.0.0.1:5570"
        )
    others = (config.kv_events_endpoint, config.kv_events_replay_endpoint, config.reports_endpoint)
    ports = {urlsplit(each).port for each in others if each is not None}
    if taken := ports & {urlsplit(each).port for each in (endpoint, replay_endpoint_of(endpoint))}:
        raise StartupError(f"--embedding-events-endpoint {endpoint} takes port {taken.pop()}, which another option has")


def replay_endpoint_of(endpoint: str) -> str:
    """Where embedding events are asked for that were missed."""
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + 1}"


def check_reports(config: Config) -> None:
    """Refuse an endpoint that is none, or that has no secret. Raises StartupError."""
    endpoint = config.reports_endpoint
    if endpoint is None:
        return
    if not _is_endpoint(endpoint):
        raise StartupError(
            f"--reports-endpoint {endpoint} is no address to listen on: write it as tcp://127.0.0.1:5560"
        )
    if config.cluster_key_file is None:
        raise StartupError("--reports-endpoint needs --cluster-key-file: reports are for fronts that share the secret")


def _is_endpoint(endpoint: str) -> bool:
    try:
        url = urlsplit(endpoint)
        return url.scheme == "tcp" and bool(url.hostname) and bool(url.port) and not (url.path or url.query)
    except ValueError:  # the port
        return False
