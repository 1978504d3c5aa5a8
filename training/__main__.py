"""Trains a model: ``python -m training MODEL [OPTION ...]``; ``python -m training MODEL --help`` lists its options."""

from __future__ import annotations

import argparse
import runpy
import sys

MODELS = {
    "llava": ("training.schedule", "the packaged model"),
    "qwen3_vl": (
        "training.qwen3_vl.schedule",
        "a small Qwen3-VL for the tests: pictures of any size, three axes, DeepStack",
    ),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m training",
        description="Trains a model; started again, it goes on where it was.",
        epilog="models:\n" + "\n".join(f"  {name:10} {about}" for name, (_, about) in MODELS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the model's own command; --help lists them")
    given = parser.parse_args()
    module, _ = MODELS[given.model]
    sys.argv = [f"python -m training {given.model}", *given.options]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
