"""What only a GPU can show, in one command of at most 8 minutes that needs nothing from outside.

    python -m benchmarks.gpu --only 0,1,2,3          # first: it finds what was written without a GPU, in 140 s
    python -m benchmarks.gpu --results gpu-results
    python -m benchmarks.gpu --device cpu            # the dry run: the same code on a CPU, with small shapes
    python -m benchmarks.gpu --compare old.json new.json

Steps: 0 facts of the card and the software, 1 ceilings (copy, products, launches), 2 parity of every kernel against
float64, 3 the tokens of every family's tiny checkpoint and of the packaged model beside the CPU's, 4 attention alone,
5 decode and prefill beside their floors, 6 the whole server with pictures, 7 faults, 8 the goals. Each step is a child
process with a time limit; battery.json is written after each, so that nothing is lost by one that fails. Packages that
are missing skip the checks that need them (README.md here says how to bring them).

Exit status: 0 if a step has passed and none has failed or run out of time, 1 otherwise, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import datetime
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import goals, plan, results
from benchmarks.gpu.checks import Settings, write
from benchmarks.gpu.supervise import run_step
from benchmarks.load.server import exit_on_sigterm

_LEAST_S = 5.0
"""A step with less time left is not started."""
_LOG = "battery.log"
_ROOT = Path(__file__).parents[2]


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="STEPS", help="numbers of steps, with commas between them; default: all")
    parser.add_argument("--seconds", type=float, default=plan.SECONDS, help="of all steps; later ones are cut off")
    parser.add_argument("--results", type=Path, default=Path("gpu-results"), metavar="DIR", help="where files go")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the dry run")
    parser.add_argument("--seed", type=int, help="of inputs; default: a new one")
    parser.add_argument("--family", action="append", default=[], help="of step 3 only this one; repeatable")
    parser.add_argument("--label", default="", help="kept in the results, such as a commit where there is no git")
    parser.add_argument("--compare", nargs=2, type=Path, metavar="JSON", help="print the figures of two runs instead")
    options = parser.parse_args()
    if options.compare:
        print(goals.comparison(*(json.loads(path.read_text()) for path in options.compare)))
        return 0
    try:
        steps = plan.chosen(options.only)
    except ValueError as error:
        parser.error(str(error))
    return _run(steps, options)


def _run(steps: Sequence[plan.Step], options: argparse.Namespace) -> int:
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "battery.json"
    seed = secrets.randbits(31) if options.seed is None else options.seed
    settings = Settings(options.device, seed, str(path.resolve()), tuple(options.family))
    run: dict[str, Any] = _about(options, seed) | {"steps": [], "goals": []}
    write(path, run)
    (options.results / _LOG).write_text("")
    with tempfile.TemporaryDirectory() as made, exit_on_sigterm():
        started_s = time.monotonic()
        for step, end_s in plan.ends(steps, options.seconds):
            left_s = end_s - (time.monotonic() - started_s)
            run["steps"].append(_step(step, settings, Path(made), left_s, options.results / _LOG))
            run["goals"] = goals.rows(run["steps"])
            write(path, run)
    if not run["steps"]:
        print("\nno step was chosen")
    print(f"\n{goals.steps_table(run['steps'])}\n\n{goals.table(run['goals'])}\n\nresults: {path}")
    return results.exit_status(run["steps"])


def _step(step: plan.Step, settings: Settings, folder: Path, left_s: float, log: Path) -> results.Result:
    print(f"{step.number} {step.name} ... ", end="", flush=True)
    if left_s < _LEAST_S:
        found = results.not_started(step, "no time was left")
    else:
        found = results.result_of(step, run_step(step, settings, folder, left_s))
        with log.open("ab") as whole, (folder / f"step-{step.number}.log").open("rb") as own:
            whole.write(f"== step {step.number}, {step.name}\n".encode())
            shutil.copyfileobj(own, whole)
    print(f"{found['verdict']} ({found['seconds']:.0f} s): {found['reason']}", flush=True)
    return found


def _about(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"commit": _commit(), "label": options.label, "time": now, "device": options.device, "seed": seed}


def _commit() -> str:
    """Empty in a copy without git."""
    if not shutil.which("git"):
        return ""
    said = subprocess.run(["git", "-C", _ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return said.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
