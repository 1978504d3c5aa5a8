"""Where a Config comes from: flags over ``MMSERVE_*`` over a YAML or TOML file over the defaults.

Everything is derived from Config's fields.
"""

from __future__ import annotations

import difflib
import importlib.util
import ipaddress
import json
import math
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import inspect

from mmserve.config import media_limits
from mmserve.config.api_keys import load_api_keys
from mmserve.config.config import ENV_PREFIX, Config
from mmserve.config.event_options import check_embedding_events, check_kv_events, check_reports
from mmserve.config.node_options import check_nodes
from mmserve.runtime.errors import StartupError

CONFIG_ENV = f"{ENV_PREFIX}CONFIG"
"""Names the config file, like ``--config``."""
_PER_PROMPT = "limit_mm_per_prompt"
_SERVICE_LINK = re.compile(ENV_PREFIX + r"(\w+_)?(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP|SCTP))(_\w+)?")


class OptionError(StartupError):
    """An option that is unknown, out of range, or conflicts with another. One line."""


@dataclass(frozen=True)
class Option:
    """One field of Config as a command-line option."""

    name: str
    group: str
    help: str
    default: Any
    annotation: Any
    kind: inspect.Type
    """The msgspec type of the field, without ``| None``."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal, in order; empty for other types."""
        literal = typing.get_args(self.annotation)[0]
        return typing.get_args(literal) if isinstance(self.kind, inspect.LiteralType) else ()

    @property
    def allowed(self) -> str:
        """The accepted values, in words."""
        if self.name == _PER_PROMPT:
            return media_limits.FORMS
        match self.kind:
            case inspect.LiteralType():
                return "one of " + ", ".join(self.choices)
            case inspect.BoolType():
                return "true or false"
            case inspect.IntType(ge=low, le=high):
                return "a whole number" + _limits(low, None, high)
            case inspect.FloatType(ge=low, gt=above, le=high):
                return "a number" + _limits(low, above, high)
            case inspect.VarTupleType(item_type=inspect.IntType()):
                return "a list of whole numbers, or one text with commas"
            case inspect.VarTupleType():
                return "a list of texts, or one text with commas"
            case inspect.DictType():
                return "a JSON object"
        return "a text that is not empty"

    def parse(self, value: Any, said: str) -> Any:
        """``value`` as the field's type. ``said``: how the user wrote it, for the error. Raises OptionError."""
        if isinstance(self.kind, inspect.VarTupleType) and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        try:
            if self.name == _PER_PROMPT:
                value = media_limits.images_of(value)
            if isinstance(self.kind, inspect.DictType) and isinstance(value, str):
                value = msgspec.json.decode(value)
            parsed = msgspec.convert(value, self.annotation, strict=False)
        except (msgspec.DecodeError, ValueError):
            raise OptionError(f"{said}: {self.name} must be {self.allowed}") from None
        if parsed == "" or (isinstance(parsed, float) and not math.isfinite(parsed)):
            raise OptionError(f"{said}: {self.name} must be {self.allowed}")
        return parsed


def _limits(low: float | None, above: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {_written(low)} to {_written(high)}"
    bounds = ((" of at least", low), (" above", above), (" and at most" if above is not None else " of at most", high))
    return "".join(f"{words} {_written(bound)}" for words, bound in bounds if bound is not None)


def _written(number: float) -> str:
    """Numbers from a million on in full, with thousands separators."""
    return f"{number:,}" if number >= 10**6 else f"{number:g}"


def _options() -> Iterable[Option]:
    annotations = typing.get_type_hints(Config, include_extras=True)
    struct = typing.cast(inspect.StructType, inspect.type_info(Config))
    for field in struct.fields:
        meta = typing.cast(inspect.Metadata, field.type)
        kind = meta.type
        if isinstance(kind, inspect.UnionType):
            kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
        described, extra = meta.extra_json_schema or {}, meta.extra or {}
        yield Option(field.name, extra["group"], described["description"], field.default, annotations[field.name], kind)


OPTIONS: dict[str, Option] = {option.name: option for option in _options()}
"""Every option by field name, in the order of Config."""


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], file: str | None) -> Config:
    """The Config that flags (by field name), environment and file (or ``MMSERVE_CONFIG``) add up to.

    Raises OptionError at the first value or combination that cannot work.
    """
    values: dict[str, Any] = {}
    if (path := file or environ.get(CONFIG_ENV)) is not None:
        values |= _from_file(Path(path))
    values |= _from_environment(environ)
    values |= {name: OPTIONS[name].parse(value, f"{OPTIONS[name].flag} {value}") for name, value in flags.items()}
    config = Config(**values)
    check(config)
    return config


def check(config: Config) -> None:
    """Refuse combinations that cannot work with any model. Raises OptionError."""
    if config.max_num_batched_tokens < config.max_num_seqs:
        raise OptionError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is less than --max-num-seqs "
            f"{config.max_num_seqs}, but each running sequence needs a token in every step: raise it or lower the other"
        )
    if config.ray_address is not None and not config.replicas:
        raise OptionError(f"--ray-address {config.ray_address} needs --replicas: without it there is one server alone")
    if config.min_replicas is not None and config.min_replicas > config.replicas:
        raise OptionError(f"--min-replicas {config.min_replicas} is more than --replicas {config.replicas}")
    if config.replicas and (config.cluster_key_file is not None or config.reports_endpoint is not None):
        raise OptionError("--replicas makes its own --cluster-key-file and --reports-endpoint: leave them out")
    if config.port == config.health_port != 0:
        raise OptionError(f"--port and --health-port are both {config.port}: choose another, or 0 for a free one")
    if config.concurrent_alloc_fraction != 1 and not config.enable_concurrent_alloc:
        raise OptionError(
            f"--concurrent-alloc-fraction {config.concurrent_alloc_fraction:g} does not go with "
            "--no-enable-concurrent-alloc, which sends every request down v1: leave one of them out"
        )
    if config.fault_injection and not _is_loopback(config.host):
        raise OptionError(
            f"--fault-injection does not go with --host {config.host}: a server that breaks on purpose is for drills "
            "on this machine; listen on 127.0.0.1, or leave it out"
        )
    for name, budget_mb in (("body", config.body_budget_mb), ("fetch", config.fetch_budget_mb)):
        if budget_mb is not None and budget_mb < config.max_body_mb * config.http_workers:
            raise OptionError(
                f"--{name}-budget-mb {budget_mb:g} gives each of {config.http_workers} HTTP workers less than one "
                f"request's --max-body-mb {config.max_body_mb:g}: raise it or lower the other"
            )
    if config.mm_hash == "blake3" and importlib.util.find_spec("blake3") is None:
        raise OptionError("--mm-hash blake3 needs a package: pip install 'mmserve[blake3]', or choose sha256")
    if config.otlp_traces_endpoint is not None:
        _check_otlp(config.otlp_traces_endpoint)
    for origin in config.allowed_origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+/?", origin.lower()):
            raise OptionError(f"--allowed-origins {origin} is no origin: write it as https://example.com, or * for any")
    try:
        load_api_keys(config)
        check_kv_events(config)
        check_embedding_events(config)
        check_nodes(config)
        check_reports(config)
    except StartupError as error:
        raise OptionError(str(error)) from None
    if config.allowed_local_media_path is not None and not Path(config.allowed_local_media_path).is_dir():
        raise OptionError(
            f"--allowed-local-media-path {config.allowed_local_media_path} is not a directory: create it, or name one"
        )


def _check_otlp(endpoint: str) -> None:
    try:
        url = urlsplit(endpoint)
        is_http = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise OptionError("--otlp-traces-endpoint is no URL of HTTP: write it as http://localhost:4318")
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        try:
            is_missing = importlib.util.find_spec(module) is None
        except ModuleNotFoundError:
            is_missing = True
        if is_missing:
            raise OptionError("--otlp-traces-endpoint needs more packages: pip install 'mmserve[otel]'")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def as_words(name: str, value: Any) -> list[str]:
    """The option with this value, as arguments of ``mmserve serve``."""
    flag = OPTIONS[name].flag
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, ",".join(value) if isinstance(value, tuple) else str(value)]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    by_env = {option.env: option for option in OPTIONS.values()}
    values = {}
    for key, value in environ.items():
        if not key.startswith(ENV_PREFIX) or key == CONFIG_ENV:
            continue
        if _is_kubernetes(key, value):
            continue
        if key not in by_env:
            raise OptionError(f"environment variable {key} is no option{did_you_mean(key, by_env)}")
        said = f"{key}={'...' if key == OPTIONS['api_key'].env else value}"
        values[by_env[key].name] = by_env[key].parse(value, said)
    return values


def _is_kubernetes(key: str, value: str) -> bool:
    """True for variables that Kubernetes sets for services named mmserve or mmserve-..."""
    return _SERVICE_LINK.fullmatch(key) is not None or (
        key.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://"))
    )


def _from_file(path: Path) -> dict[str, Any]:
    values = {}
    for key, value in _read(path).items():
        name = str(key).replace("-", "_")
        if name not in OPTIONS:
            raise OptionError(f"{path}: {key} is no option{did_you_mean(name, OPTIONS)}")
        if value is not None:
            values[name] = OPTIONS[name].parse(value, f"{path}: {key}: {'...' if name == 'api_key' else value}")
    return values


def _read(path: Path) -> Mapping[Any, Any]:
    try:
        text = path.read_text()
        # YAML is imported only when such a file is read, to keep `mmserve --help` instant.
        if path.suffix == ".toml":
            content: Any = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            import yaml

            try:
                content = yaml.safe_load(text) or {}
            except yaml.YAMLError as error:
                raise ValueError(" ".join(str(error).split())) from None
        else:
            raise OptionError(f"--config {path}: the name must end in .yaml, .yml or .toml")
    except (OSError, ValueError) as error:
        raise OptionError(f"--config {path}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise OptionError(f"--config {path}: must hold one 'option: value' a line")
    return content
