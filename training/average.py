"""The mean of the text models of several ends of stage C: better than each on what the others had forgotten.

    python -m training.average runs/joint_b.pt runs/joint.pt --out runs/mean.pt

The weights of runs that began at the same ones lie close enough together (Wortsman et al. 2022, "Model soups").
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from training import common


def mean(paths: list[Path]) -> common.State:
    """{"eye", "text"}: the eye that they have in common, and the mean of their text models. Raises ValueError when
    their eyes differ."""
    ends = [common.load(path) for path in paths]
    eye = ends[0]["eye"]
    for end in ends[1:]:
        if any(not torch.equal(end["eye"][name], value) for name, value in eye.items()):
            raise ValueError("these have different eyes")
    texts = [end["text"] for end in ends]
    return {"eye": eye, "text": {name: sum(text[name] for text in texts) / len(texts) for name in texts[0]}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ends", type=Path, nargs="+", help="checkpoints of stage C")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    common.save(options.out, mean(options.ends))


if __name__ == "__main__":
    main()
