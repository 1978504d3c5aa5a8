"""config.json's objects as typed structs, and checks that structs of text models and of vision towers share."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mmserve.runtime.errors import StartupError

S = TypeVar("S")
_ACTIVATIONS = frozenset({"silu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "relu"})


def check_activation(name: str) -> None:
    """Raises StartupError for a function that is not supported."""
    if name not in _ACTIVATIONS:
        raise StartupError(f"activation {name!r} is not supported; supported are {', '.join(sorted(_ACTIVATIONS))}")


def convert(raw: dict[str, Any], struct: type[S], file: str = "config.json") -> S:
    """``raw`` is an object of JSON. Raises StartupError that names the key whose value has the wrong type."""
    try:
        return msgspec.convert(raw, struct, str_keys=True)
    except msgspec.ValidationError as error:
        raise StartupError(f"{file}: {error}") from None
