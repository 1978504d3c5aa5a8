"""The secret that machines which work together share: a file, and the keys that are derived from it.

Links by ZeroMQ are encrypted by CURVE. There are two key pairs, one for those that listen and one for those that
connect; a machine with the file has both. Who has it may take any part: send work to ranks, read what they get, go on
with the answers of others as a front does.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from mmserve.runtime.errors import StartupError

_FORM = re.compile(rb"mmserve-cluster-key-1 ([0-9a-f]{64})\n?")
_FOR_OTHERS = 0o077


@dataclass(frozen=True)
class KeyPair:
    """Of CURVE, as text of 40 characters each."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class ClusterKey:
    """All that is derived from one secret of 32 bytes."""

    secret: bytes = field(repr=False)
    listening: KeyPair
    connecting: KeyPair
    encoders: bytes = field(repr=False)
    """Secret of the links to encoders, which are not CURVE's."""
    fronts: bytes = field(repr=False)
    """Secret of what fronts and servers tell each other beside a client's request."""
    hash_seed: int = field(repr=False)
    """Of the keys of pictures: equal on all servers, unknown to clients."""

    @classmethod
    def of(cls, secret: bytes) -> ClusterKey:
        """Derive all keys."""
        encoders, fronts, seed = (_derived(secret, use) for use in (b"encoders", b"fronts", b"pictures"))
        listening, connecting = (_pair(_derived(secret, b"curve " + use)) for use in (b"listening", b"connecting"))
        return cls(secret, listening, connecting, encoders, fronts, int.from_bytes(seed[:8], "big") >> 1)


def new_secret() -> bytes:
    """For ``ClusterKey.of``."""
    return secrets.token_bytes(32)


def written(secret: bytes) -> bytes:
    """The content of a file with this secret."""
    return b"mmserve-cluster-key-1 %s\n" % secret.hex().encode()


def make_if_missing(path: Path) -> bool:
    """Make the file, readable by its owner alone. False if it is there already. Raises StartupError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StartupError(f"--cluster-key-file {path} cannot be made: {error.strerror}") from None
    try:
        os.fchmod(descriptor, 0o600)  # also where an access list of the directory says otherwise
        os.write(descriptor, written(new_secret()))
    finally:
        os.close(descriptor)
    return True


def read(path: Path) -> ClusterKey:
    """Raises StartupError if the file is missing, is no key, or may be read by other users."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024)
    except FileNotFoundError:
        raise StartupError(
            f"--cluster-key-file {path} does not exist: copy it from the first machine (node 0), which makes it"
        ) from None
    except OSError as error:
        raise StartupError(f"--cluster-key-file {path} cannot be read: {error.strerror}") from None
    if mode & _FOR_OTHERS:
        raise StartupError(f"--cluster-key-file {path} may be used by other users: chmod 600 {path}")
    if (match := _FORM.fullmatch(text)) is None:
        raise StartupError(
            f"--cluster-key-file {path} is no key file: remove it on the first machine, start that, and copy it"
        )
    return ClusterKey.of(bytes.fromhex(match[1].decode()))


def _derived(secret: bytes, use: bytes) -> bytes:
    return hmac.digest(secret, b"mmserve " + use, hashlib.sha256)


def _pair(key: bytes) -> KeyPair:
    own = z85.encode(key)
    return KeyPair(zmq.curve_public(own), own)
