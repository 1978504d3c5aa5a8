"""The whole training as one command that can be stopped and started again: stage A beside B, then A2, C and D.

Each stage is a module of its own with its own checkpoint; this one starts them with the cores shared out, follows what
they print, shows a bar for each, and draws the learning curves anew after every examination.  At the end the checkpoint
directory is written under `--out`, ready to be examined.

    python -m training.schedule --out runs            # about four hours on two cores, minutes on a GPU
    python -m training.schedule --out /tmp/try --scale 0.002 --check 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from training import curves
from training.pictures import fonts


@dataclass(frozen=True)
class Stage:
    """One stage: its module's name and what differs from that module's defaults."""

    module: str
    steps: int
    settings: str = ""


BESIDE = (Stage("eye", 4800), Stage("language", 4400, "--batch 14 --muon 4e-3 --adam 2e-3 --hold 0.2"))
"""At the same time, each with its share of the cores."""
AFTER = (Stage("tally", 2400, "--hold 0"), Stage("joint", 2400, "--muon 2e-3 --adam 1e-3"), Stage("tools", 2000))
"""Behind those and one behind the other, with all cores."""


class Failed(Exception):
    """A stage ended with an error, which has been told."""


RUNNING: set[subprocess.Popen[str]] = set()
"""The stages that run, each followed by a thread of its own."""


def stop() -> None:
    """Ends every stage, which ends the thread that follows it."""
    for run in list(RUNNING):
        end(run)


def end(run: subprocess.Popen[str]) -> None:
    """Ends a stage with the processes it has started: one that lived on would hold the pipe that is read here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGTERM)


def interrupted(*_: object) -> None:
    """On SIGTERM and Ctrl-C, which reach this process alone: the stages have process groups of their own."""
    stop()
    raise KeyboardInterrupt


def command(stage: Stage, options: argparse.Namespace) -> list[str]:
    """The stage's command line."""
    steps = max(2, round(stage.steps * options.scale))
    more = ["--check", str(options.check)] if options.check else []
    more += ["--device", options.device, "--compile" if options.compile else "--no-compile"]
    own = [sys.executable, "-m", f"training.stages.{stage.module}", "--out", str(options.out), "--steps", str(steps)]
    return own + stage.settings.split() + more


def follow(stage: Stage, position: int, threads: int, options: argparse.Namespace) -> None:
    """Runs one stage to its end under a bar; its errors go to a file."""
    steps = max(2, round(stage.steps * options.scale))
    errors = options.out / f"{stage.module}.err"
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with (
        errors.open("a") as told,
        tqdm(desc=f"{stage.module:9}", total=steps, position=position, unit=" steps", dynamic_ncols=True) as bar,
        subprocess.Popen(
            command(stage, options),
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            env=environment,
            process_group=0,
        ) as run,
    ):
        RUNNING.add(run)
        try:
            for line in run.stdout or ():
                show(bar, line)
                if "held_out" in line:
                    curves.draw(options.out)
        finally:
            RUNNING.discard(run)
            end(run)
        if run.wait():
            bar.write(f"stage {stage.module} ended with status {run.returncode}: see {errors}")
            raise Failed("started again, the command goes on from the last checkpoints")
        bar.update(steps - bar.n)


def show(bar: tqdm[None], line: str) -> None:
    """Moves a bar to the step that a stage told; its first line of a resumed run moves the start too."""
    try:
        said = json.loads(line)
    except ValueError:
        return
    done = said.get("step", -1) + 1
    if not bar.n and done > 1:
        bar.initial = done
    bar.update(max(0, done - bar.n))
    if "loss" in said:
        bar.set_postfix_str(f"loss {said['loss']:.3f}")
    if "held_out" in said:
        scores = " ".join(f"{name} {value:.2f}" for name, value in said["held_out"].items())
        bar.write(f"{bar.desc.strip()} step {done}: {scores}")


def train(options: argparse.Namespace) -> None:
    """All stages; one that is finished only looks at its checkpoint."""
    fonts.check(fonts.TRAINING)
    options.out.mkdir(parents=True, exist_ok=True)
    cores = options.threads or os.cpu_count() or 1
    share = max(1, cores // len(BESIDE))
    with ThreadPoolExecutor(len(BESIDE)) as pool:
        running = [pool.submit(follow, stage, place, share, options) for place, stage in enumerate(BESIDE)]
        for stage_run in running:
            stage_run.result()
    for stage in AFTER:
        follow(stage, 0, cores, options)
    made = options.out / "llava"
    written = [sys.executable, "-m", "training.export", "--weights", str(options.out / "tools.pt"), "--out", str(made)]
    subprocess.run([*written, "--tokenizer", str(options.out / "tokenizer.json")], check=True)
    print(f"curves: {curves.draw(options.out)}")
    print(f"examine it: python -m training.evaluate --transformers {made} --sets all")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--scale", type=float, default=1.0, help="of every stage's steps, for a trial")
    parser.add_argument(
        "--check", type=int, help="steps between examinations and checkpoints (default: each stage's own)"
    )
    parser.add_argument("--threads", type=int, help="cores in all (default: the machine's)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, interrupted)
    try:
        train(parser.parse_args())
    except (Failed, FileNotFoundError) as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("stopped; started again, the command goes on from the last checkpoints")


if __name__ == "__main__":
    main()
