"""Serve a GGUF file with OpenVINO GenAI, or run requests of a file in this process.

    PYTHONPATH=. venv-ov/bin/python -m benchmarks.peers.on_openvino --gguf FILE --checkpoint DIR --port 8199

``--runs FILE``: nothing is served. FILE holds a list of runs in JSON, each with "clients" and "bodies" (chat
completions); their times are printed as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from benchmarks.peers.on_openvino import in_process
from benchmarks.peers.on_openvino.chat import asked
from benchmarks.peers.on_openvino.engine import Request
from benchmarks.peers.on_openvino.options import Options
from benchmarks.peers.on_openvino.server import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--checkpoint", required=True, type=Path, help="directory of tokenizer and chat template")
    parser.add_argument("--port", type=int, default=8199)
    parser.add_argument("--sequences", type=int, default=32, help="at once, at most")
    parser.add_argument("--kv-cache-gb", type=int, default=1)
    parser.add_argument("--kv-precision", default="", help="f16 or bf16, in place of OpenVINO's default of 8 bits")
    parser.add_argument("--step-tokens", type=int, default=Options.step_tokens, help="in one step, at most")
    parser.add_argument("--runs", type=Path)
    given = vars(parser.parse_args())
    port, runs = given.pop("port"), given.pop("runs")
    options = Options(**given)
    if runs:
        print(json.dumps(_in_process(options, runs)))
    else:
        serve(options, port)


def _in_process(options: Options, runs: Path) -> list[dict[str, object]]:
    from benchmarks.peers.on_openvino.pipeline import OpenVino  # the server's process need not import it

    pipeline, numbers, found = OpenVino(options), itertools.count(), []
    for each in json.loads(runs.read_text()):
        wanted = [asked(body) for body in each["bodies"]]
        requests = [Request(next(numbers), pipeline.ids(one), one.max_tokens) for one in wanted]
        found.append(in_process.run(pipeline, requests, each["clients"]))
    return found


if __name__ == "__main__":
    main()
