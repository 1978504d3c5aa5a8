"""Family name -> the decoder that serves it. A new architecture is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from mmserve.model_backend.models.llama import Llama

DECODERS: dict[str, Callable[..., Llama]] = {
    "llama": Llama,
    "llava": Llama,
}
