"""Perplexity and memory of a text model in the formats of published checkpoints, beside the unquantized model.

The engine runs in this process and reads a fixed text in windows, one token a step, as answers are written. AWQ, GPTQ,
compressed-tensors and FP8 are written here by rounding to the nearest value, without the search for better ones after
which two of them are named, so their perplexity says what the format costs at most. GGUF files are given:
``--gguf FILE``, as llama-quantize makes them.

    python -m benchmarks.answers.formats --model DIR --gguf model-Q4_K_M.gguf --gguf model-Q6_K.gguf
    python -m benchmarks.answers.formats --model DIR --tokens 200 --window 100 --json formats.json
    python -m benchmarks.answers.formats --model DIR --only w8 --only FP8
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from benchmarks.answers.engine import Engine
from benchmarks.answers.quality import TEXT
from benchmarks.load import report
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config
from tests.fakes.formats.quantized_checkpoints import awq, fp8, gptq, int8, packed, quantize_checkpoint

_WRITTEN = {
    "AWQ, groups of 64": awq(64),
    "GPTQ, 4 bits, groups of 64": gptq(group=64),
    "GPTQ, 4 bits, groups of 64, act-order": gptq(group=64, desc_act=True),
    "GPTQ, 8 bits, groups of 64": gptq(bits=8, group=64),
    "w4a16, groups of 32": packed(group=32),
    "w8a16, by outputs": int8(rounds_inputs=False),
    "w8a8": int8(),
    "FP8, one scale a matrix": fp8(),
    "FP8, blocks of 64 x 64": fp8((64, 64)),
}
"""Groups of 64, as SmolLM2's hidden size is a multiple of 64 and not of 128. With act-order a group is of any inputs,
not of those that matter alike."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="directory of an unquantized text model")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="the same model; repeatable")
    parser.add_argument("--only", action="append", metavar="NAME", help="beginning of rows' names; repeatable")
    parser.add_argument("--text", type=Path, default=TEXT, help=f"what is read [{TEXT.name}]")
    parser.add_argument("--tokens", type=int, default=1500, help="of the text, from its beginning")
    parser.add_argument("--window", type=int, default=500, help="tokens read in one piece")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def main() -> None:
    """Load an engine for each format, one after the other, read the text, print the table."""
    options = arguments()
    text = options.text.read_text()
    tokenizer = tokenizers.Tokenizer.from_file(str(options.model / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids[: options.tokens]
    windows = [ids[at : at + options.window] for at in range(0, len(ids), options.window)]
    with tempfile.TemporaryDirectory() as temporary:
        rows: list[report.Row] = []
        for name, model, settings in _formats(options, Path(temporary)):
            print(f"{name}: loading", flush=True)
            if model.suffix == ".gguf":
                _check_same_ids(locate(str(model)), text, ids)
            engine = Engine(Config(model=str(model), max_model_len=max(16, options.window), max_num_seqs=1, **settings))
            rows.append(_row(name, engine, [window for window in windows if len(window) > 1]))
            del engine
    for row in rows:
        row["/ float32"] = float(str(row["perplexity"])) / float(str(rows[0]["perplexity"]))
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    print(f"\n{report.machine()}; {options.text.name} ({digest}), {len(ids)} tokens in windows of {options.window}")
    print(f"\n{report.table(rows)}")
    report.write_json(options.json, rows)


def _formats(options: argparse.Namespace, temporary: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """(name, checkpoint, settings of the server). The first is in float32, and is there whatever else is."""
    chosen = tuple(options.only or [""])
    yield "as stored, `--dtype float32`", options.model, {"dtype": "float32"}
    settings = {
        "as stored, `--dtype bfloat16`": {"dtype": "bfloat16"},
        **{
            f"`--quantization {name}`, {dtype}": {"quantization": name, "dtype": dtype}
            for name in ("int8", "int4")
            for dtype in ("float32", "bfloat16")
        },
    }
    for name, of_server in settings.items():
        if name.startswith(chosen):
            yield name, options.model, of_server
    for name, form in _WRITTEN.items():
        if not name.startswith(chosen):
            continue
        directory = temporary / "quantized"
        shutil.copytree(options.model, directory)
        yield name, quantize_checkpoint(directory, form, temporary / "plain"), {}
        shutil.rmtree(directory)
        shutil.rmtree(temporary / "plain")
    for file in options.gguf:
        yield f"GGUF, {file.stem.rpartition('-')[2]}", file, {}


def _check_same_ids(directory: Path, text: str, ids: list[int]) -> None:
    """Raises SystemExit if the file's tokenizer is another one: perplexities could not be compared."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    if tokenizer.encode(text, add_special_tokens=False).ids[: len(ids)] != ids:
        raise SystemExit(f"{directory}: its tokenizer gives other tokens than --model's")


def _row(name: str, engine: Engine, windows: list[list[int]]) -> report.Row:
    nll = [each for window in windows for each in engine.read([window]).nll]
    return {
        "weights": name,
        "matrices in memory, MiB": engine.matrices_nbytes / (1 << 20),
        "perplexity": math.exp(statistics.fmean(nll)),
    }


if __name__ == "__main__":
    main()
