"""Writes a draft model: the first layers of a Llama-like checkpoint, with its norm and output head.

    python -m benchmarks.first_layers SOURCE TARGET --layers N [--repeats R --rest F]

With ``--repeats`` it writes a model that such a draft model is often right for: the other layers follow R times, and
each adds F times what it does. The smaller F, the more often the draft model is right. What such a model writes means
nothing, but times are those of real models.

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
_OUTPUTS = ("o_proj.weight", "down_proj.weight")
"""What a layer adds is multiplied by these last."""
_PER_LAYER = ("layer_types",)
"""Lists in config.json that have an entry for each layer."""


def write(source: Path, target: Path, num_layers: int, *, rest: float = 0.0, repeats: int = 0) -> None:
    """``target`` becomes a checkpoint directory. ``repeats``: it has the other layers so often, and each adds ``rest``
    times what it does."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix in (".json", ".jinja") and not file.name.endswith(".index.json"):
            shutil.copy2(file, target)
    config = json.loads((source / "config.json").read_text())
    num_others = config["num_hidden_layers"] - num_layers
    for name in _PER_LAYER:
        if name in config:
            config[name] = config[name][:num_layers] + config[name][num_layers:] * repeats
    config["num_hidden_layers"] = num_layers + num_others * repeats
    (target / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            layer = _LAYER.search(name)
            if layer is None or int(layer[1]) < num_layers:
                tensors[name] = tensor
                continue
            factor = rest if name.endswith(_OUTPUTS) else 1.0
            for repeat in range(repeats):
                number = int(layer[1]) + repeat * num_others
                tensors[_LAYER.sub(f".layers.{number}.", name)] = tensor * factor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--rest", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.source, arguments.target, arguments.layers, rest=arguments.rest, repeats=arguments.repeats)


if __name__ == "__main__":
    main()
