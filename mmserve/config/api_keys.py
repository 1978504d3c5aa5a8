"""API keys of one server: the one of ``--api-key`` and those of ``--api-key-file``, kept as digests.

Lines of the file are ``NAME KEY`` or ``NAME KEY AREAS``; blank lines and those that begin with # are skipped. NAME
appears in logs and metrics. AREAS are separated by commas: ``api`` (the default), ``metrics``, ``admin``, or ``all``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError

Area = Literal["api", "metrics", "admin"]
"""What a key opens: ``/metrics``, ``/admin/``, or every other path."""
AREAS: frozenset[Area] = frozenset(get_args(Area))
_SINGLE_KEY_NAME = "api-key"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_KEYS = 1000
"""Every request is compared with each of them."""


class ApiKey(NamedTuple):
    name: str
    digest: bytes
    areas: frozenset[Area]


def digest_of(key: str) -> bytes:
    """Digests have equal lengths, so comparing them tells nothing about the length of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_api_keys(config: Config) -> tuple[ApiKey, ...]:
    """All keys; none: the server is open. Raises StartupError, which names a line but never shows it."""
    keys = [] if config.api_key is None else [ApiKey(_SINGLE_KEY_NAME, digest_of(config.api_key), AREAS)]
    if config.api_key_file is not None:
        keys += _read(Path(config.api_key_file))
    for what, values in (("name", [key.name for key in keys]), ("key", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise StartupError(f"--api-key-file {config.api_key_file}: a {what} is given twice")
    return tuple(keys)


def has_tenants(config: Config) -> bool:
    """True if each key has caches of its own. Raises StartupError."""
    if config.caches_by_key is not None:
        return config.caches_by_key
    return sum("api" in key.areas for key in load_api_keys(config)) > 1


def _read(path: Path) -> list[ApiKey]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise StartupError(f"--api-key-file {path} cannot be read: {reason}") from None
    keys = list(_parse(path, lines))
    if not 0 < len(keys) <= _MAX_KEYS:
        raise StartupError(f"--api-key-file {path} has {len(keys)} keys: give it 1 to {_MAX_KEYS}, one a line")
    return keys


def _parse(path: Path, lines: list[str]) -> Iterator[ApiKey]:
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        areas = set(words[2].split(",")) if len(words) == 3 else {"api"}
        if areas == {"all"}:
            areas = set(AREAS)
        if len(words) not in (2, 3) or not _NAME.fullmatch(words[0]) or not areas <= AREAS:
            raise StartupError(
                f"--api-key-file {path}: line {number} is not 'NAME KEY' or 'NAME KEY AREAS', where a name is letters, "
                "digits, '.', '_' and '-', and areas are api, metrics, admin or all"
            )
        yield ApiKey(words[0], digest_of(words[1]), frozenset(cast(set[Area], areas)))
