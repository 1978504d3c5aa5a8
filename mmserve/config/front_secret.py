"""The secret that a front and its replicas share: a file, which only its owner should be able to read."""

from __future__ import annotations

from pathlib import Path

from mmserve.runtime.errors import StartupError

_MIN_CHARS = 32


def load_front_secret(path: str) -> bytes:
    """Raises StartupError if the file cannot be read or the secret is short."""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise StartupError(f"--front-secret-file {path} cannot be read: {error.strerror}") from None
    if len(secret) < _MIN_CHARS:
        raise StartupError(
            f"--front-secret-file {path} has {len(secret)} characters: give it {_MIN_CHARS} or more, as "
            "`openssl rand -hex 32` makes them"
        )
    return secret
