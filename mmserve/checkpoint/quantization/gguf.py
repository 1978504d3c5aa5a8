"""What ``checkpoint.gguf`` writes about a file's matrices into config.json."""

from __future__ import annotations

from typing import Any

from mmserve.checkpoint.quantization.fields import check_known
from mmserve.checkpoint.quantization.scheme import QuantizationScheme


def read_gguf(fields: dict[str, Any]) -> QuantizationScheme:
    """Raises StartupError for what is not supported."""
    check_known(fields, {"quant_method", "mixture", "matrices"}, "GGUF")
    matrices = ", ".join(fields["matrices"])
    return QuantizationScheme(method=f"GGUF {fields['mixture']} ({matrices})", layout="gguf", bits=0)
