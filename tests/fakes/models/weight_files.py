"""Safetensors files of any size that take no room on the disk."""

from __future__ import annotations

import json
from pathlib import Path

_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def sparse_weights(directory: Path, tensors: dict[str, int], dtype: str = "F16") -> None:
    """Write model.safetensors. ``tensors``: name -> how many numbers, which are all zero."""
    header, end = {}, 0
    for name, numbers in tensors.items():
        start, end = end, end + numbers * _ITEM_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": [numbers], "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
