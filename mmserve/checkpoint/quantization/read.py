"""config.json -> ``QuantizationScheme``. What is not known is refused with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmserve.checkpoint.quantization.compressed_tensors import read_compressed_tensors
from mmserve.checkpoint.quantization.fields import refused
from mmserve.checkpoint.quantization.fp8 import read_fp8
from mmserve.checkpoint.quantization.gguf import read_gguf
from mmserve.checkpoint.quantization.integer_formats import read_awq, read_gptq
from mmserve.checkpoint.quantization.scheme import QuantizationScheme

_READERS: dict[str, Callable[[dict[str, Any]], QuantizationScheme]] = {
    "awq": read_awq,
    "gptq": read_gptq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gguf": read_gguf,
}
"""By ``quant_method``."""
_KEYS = ("quantization_config", "compression_config")
_TEXTS = ("text_config", "llm_config")
"""Of a model with pictures. The latter is InternVL's in its authors' format."""


def read_scheme(config: dict[str, Any]) -> QuantizationScheme | None:
    """None for a checkpoint that is not quantized. Raises StartupError for a scheme that is not supported."""
    texts = [config.get(name) for name in _TEXTS]
    for part in (config, *(text for text in texts if isinstance(text, dict))):
        for key in _KEYS:
            if key in part:
                return _read(part[key])
    return None


def _read(fields: Any) -> QuantizationScheme:
    method = fields.get("quant_method") if isinstance(fields, dict) else None
    reader = _READERS.get(str(method))
    if reader is None:
        raise refused(f"quant_method {method!r} (of {', '.join(_READERS)})")
    return reader(fields)
