"""``mmserve serve --replicas``: the options of each server, and the call of what runs them on Ray."""

from __future__ import annotations

from mmserve.cluster.on_ray.environment import set_for_own_ray
from mmserve.config.config import Config
from mmserve.config.options import OPTIONS, as_words
from mmserve.runtime.errors import StartupError

_OF_THE_FRONT = frozenset(
    {
        "replicas", "min_replicas", "ray_address", "host", "port", "health_port", "allowed_hosts", "allowed_origins",
        "max_connections",
    }
)  # fmt: skip
_SECRETS = frozenset({"api_key"})
"""Not on a command line, which every user of a machine sees."""


def serve_replicas(config: Config) -> int:
    """Run the command until a signal ends it. Raises StartupError."""
    if config.ray_address is None:
        set_for_own_ray()
    try:
        # Imported here: most servers have no Ray.
        from mmserve.cluster.on_ray import run
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise StartupError("--replicas needs Ray: pip install 'mmserve[ray]'") from None
    environment = {} if config.api_key is None else {OPTIONS["api_key"].env: config.api_key}
    front = {
        "host": config.host,
        "allowed_hosts": ("*",) if config.api_key or config.api_key_file else config.allowed_hosts,  # as one server
        "allowed_origins": config.allowed_origins,
        "max_connections": config.max_connections,
        "max_body_mb": config.max_body_mb,
        "shutdown_timeout_s": config.shutdown_timeout,
    }
    if config.body_budget_mb is not None:
        front["body_budget_mb"] = config.body_budget_mb
    return run.serve_replicas(
        (config.replicas if config.min_replicas is None else config.min_replicas, config.replicas),
        options_of(config),
        environment,
        front,
        port=config.port,
        address=config.ray_address,
        device=config.device,
        tp=config.tp,
    )


def options_of(config: Config) -> list[str]:
    """Of each server: those that are not the default."""
    given = {
        name: getattr(config, name)
        for name, option in OPTIONS.items()
        if name not in _OF_THE_FRONT | _SECRETS and getattr(config, name) != option.default
    }
    return [word for name, value in given.items() for word in as_words(name, value)]
