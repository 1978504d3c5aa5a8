"""Checks the options --kv-events-* and --reports-endpoint."""

from __future__ import annotations

from urllib.parse import urlsplit

from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError

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
