"""The secret that all machines of one server share: a file, and the keys of its links, which are derived from it.

The links are encrypted by CURVE (ZeroMQ). There are two key pairs, one for those that listen and one for those that
connect; a machine with the file has both. Who has it may take any part in the server: send work to ranks and read
what they get.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from mmserve.runtime.errors import StartupError

_FORM = re.compile(rb"mmserve-cluster-key-1 ([0-9a-f]{64})\n")
_FOR_OTHERS = 0o077


@dataclass(frozen=True)
class KeyPair:
    """Of CURVE, as text of 40 characters each."""

    public: bytes
    secret: bytes


@dataclass(frozen=True)
class ClusterKey:
    """The keys of a server's links between machines."""

    listening: KeyPair
    connecting: KeyPair
    encoders: bytes
    """Secret of the links to encoders, which are not CURVE's."""


def make_if_missing(path: Path) -> bool:
    """Make the file, readable by its owner alone. False if it is there already. Raises StartupError."""
    text = b"mmserve-cluster-key-1 %s\n" % secrets.token_hex(32).encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StartupError(f"--cluster-key-file {path} cannot be made: {error.strerror}") from None
    try:
        os.fchmod(descriptor, 0o600)  # also where an access list of the directory says otherwise
        os.write(descriptor, text)
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
        raise StartupError(f"--cluster-key-file {path} does not exist: copy it from node 0, which makes it") from None
    except OSError as error:
        raise StartupError(f"--cluster-key-file {path} cannot be read: {error.strerror}") from None
    if mode & _FOR_OTHERS:
        raise StartupError(f"--cluster-key-file {path} may be used by other users: chmod 600 {path}")
    if (match := _FORM.fullmatch(text)) is None:
        raise StartupError(f"--cluster-key-file {path} is no key file: remove it on node 0, start that, and copy it")
    secret = bytes.fromhex(match[1].decode())
    encoders = hmac.digest(secret, b"mmserve encoders", hashlib.sha256)
    return ClusterKey(_pair(secret, b"listening"), _pair(secret, b"connecting"), encoders)


def _pair(secret: bytes, use: bytes) -> KeyPair:
    own = z85.encode(hmac.digest(secret, b"mmserve curve " + use, hashlib.sha256))
    return KeyPair(zmq.curve_public(own), own)
