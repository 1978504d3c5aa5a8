"""All stages of the small Qwen3-VL as one command that can be stopped and started again, then the checkpoint directory.

The directory is one that transformers and the server load: bfloat16 weights, configuration, tokenizer.

python -m training qwen3_vl --out runs/qwen3_vl            # about half an hour of one core
python -m training qwen3_vl --out /tmp/try --scale 0.01
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from training.qwen3_vl import shape
from training.qwen3_vl.shape import PACKAGED
from training.stages import common

STAGES = (("eye", 18, False), ("text", 120, False), ("text", 160, True), ("several.train", 200, False))
"""Module, steps, and whether the stage is told where the tower is."""
COPIED = ("tokenizer.json", "chat_template.jinja", "generation_config.json")
"""Of the packaged model."""


def commands(options: argparse.Namespace) -> list[list[str]]:
    """The stages' command lines."""
    made = []
    for module, steps, sees in STAGES:
        line = ["--out", str(options.out), "--steps", str(max(2, round(steps * options.scale)))]
        if module != "eye":
            line += ["--bfloat16", str(int(options.bfloat16))]
        if sees:
            line += ["--eye", str(options.out / "eye.pt")]
        made.append([sys.executable, "-m", f"training.qwen3_vl.{module}", *line])
    return made


def tokenizer_config() -> dict[str, object]:
    """The packaged model's, without what only its processor reads."""
    found = json.loads((PACKAGED / "tokenizer_config.json").read_text())
    return {name: value for name, value in found.items() if name != "processor_class"}


def export(weights: Path, out: Path) -> int:
    """Fills a checkpoint directory. Returns its size in bytes."""
    model = shape.network()
    model.load_state_dict(common.load(weights)["model"])
    model.to(torch.bfloat16).save_pretrained(out)
    for name in COPIED:
        shutil.copyfile(PACKAGED / name, out / name)
    for name, content in (
        ("tokenizer_config.json", tokenizer_config()),
        ("preprocessor_config.json", shape.processor()),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    return sum(file.stat().st_size for file in out.iterdir())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/qwen3_vl"))
    parser.add_argument("--scale", type=float, default=1.0, help="of every stage's steps, for a trial")
    parser.add_argument("--bfloat16", action="store_true", help="for a CPU that multiplies matrices of bfloat16")
    options = parser.parse_args()
    for command in commands(options):
        if code := subprocess.run(command, check=False).returncode:
            sys.exit(code)
    out = options.out / "checkpoint"
    print(f"{out}: {export(options.out / 'several.pt', out) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
