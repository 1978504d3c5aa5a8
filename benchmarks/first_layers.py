"""Writes a draft model: the first layers of a Llama-like checkpoint, with its norm and output head.

    python -m benchmarks.first_layers SOURCE TARGET --layers N

Nothing is trained, so it is right more seldom than a real small model of the same family. It serves to measure what a
draft model costs and where it begins to pay (``benchmarks.speculation --draft-model TARGET``).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_PER_LAYER = ("layer_types",)
"""Lists in config.json that have an entry for each layer."""


def write(source: Path, target: Path, num_layers: int) -> None:
    """``target`` becomes a checkpoint directory."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and not file.name.endswith(".index.json"):
            shutil.copy2(file, target)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = num_layers
    for name in _PER_LAYER:
        if name in config:
            config[name] = config[name][:num_layers]
    (target / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            layer = _LAYER.search(name)
            if layer is None or int(layer[1]) < num_layers:
                tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    arguments = parser.parse_args()
    write(arguments.source, arguments.target, arguments.layers)


if __name__ == "__main__":
    main()
