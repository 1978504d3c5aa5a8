"""Examines the packaged model, through any OpenAI-style server, through transformers, or both.

Draws the questions of the sets asked for (`training.exam.sets`), judges every answer, and prints a table per set: right
answers of each kind with a 95 % confidence interval, and how many answers differ between the two ways.

    python -m training.evaluate --base-url http://127.0.0.1:8000/v1 --sets heldout brush --limit 200
    python -m training.evaluate --transformers mmserve/packaged/llava --sets all --json answers.json
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from training.exam import ask, confusion, photographs, report
from training.exam.sets import SETS, ExamSet
from training.sample import Sample

BLOCK = 64  # questions drawn, then asked


def question_of(sample: Sample) -> str:
    """The text of the user's last turn."""
    content = next(message["content"] for message in reversed(sample.messages) if message["role"] == "user")
    return content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")


def drawn(asked: ExamSet, count: int, options: argparse.Namespace) -> Iterator[list[Sample]]:
    """The set's questions, a few pictures in memory at a time."""
    wanted = (s for s in asked.make(count, options.seed) if not options.kinds or s.kind in options.kinds)
    while block := list(itertools.islice(wanted, BLOCK)):
        yield block


def examine(name: str, asked: ExamSet, ways: dict[str, ask.Ask], options: argparse.Namespace) -> list[report.Row]:
    """Draws, asks every way and judges, under a progress bar."""
    count = options.limit or asked.count
    rows: list[report.Row] = []
    with tqdm(desc=name, total=count * len(ways), unit=" answers", mininterval=1, dynamic_ncols=True) as bar:
        for block in drawn(asked, count, options):
            found: list[report.Row] = [
                {"kind": s.kind, "question": question_of(s), "expected": s.answer} for s in block
            ]
            for way, ask_all in ways.items():
                for row, sample, answer in zip(found, block, ask_all(block), strict=True):
                    right = asked.right(sample, answer)
                    row[way] = {"text": answer.text.strip(), "ended": answer.ended, "right": right}
                    bar.update()
            rows += found
    return rows


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=list_of_sets(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--base-url", help="of a running server, for example http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="served name (default: the server's first)")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--transformers", type=Path, metavar="DIR", help="checkpoint directory to ask directly")
    parser.add_argument("--dtype", default="float32", help="for transformers")
    parser.add_argument("--device", default="cpu", help="for transformers")
    parser.add_argument("--sets", nargs="+", default=["classic"], choices=[*SETS, "all"], metavar="SET")
    parser.add_argument("--limit", "--count", type=int, help="draw and ask only this many of each set")
    parser.add_argument("--kinds", nargs="+", help="ask only these kinds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the tables, every question and every answer here")
    parser.add_argument("--picture", type=Path, help="write the first set's confusion of kinds here (SVG)")
    options = parser.parse_args()
    if not (options.base_url or options.transformers):
        parser.error("nothing to ask: give --base-url, --transformers or both")
    return options


def list_of_sets() -> str:
    """The sets, for --help."""
    return "sets:\n" + "\n".join(f"  {name:10} {asked.about} ({asked.count})" for name, asked in SETS.items())


def ways_of(options: argparse.Namespace) -> dict[str, ask.Ask]:
    """What to ask, by name."""
    ways: dict[str, ask.Ask] = {}
    if options.base_url:
        ways["server"] = ask.server(options.base_url, options.model, options.api_key, options.concurrency)
    if options.transformers:
        ways["transformers"] = ask.directory(options.transformers, options.dtype, options.device)
    return ways


def ways_of_set(asked: ExamSet, ways: dict[str, ask.Ask], options: argparse.Namespace) -> dict[str, ask.Ask]:
    """How one set is asked: calls and schemas through every protocol of the server, all else in the ways given."""
    if not asked.through_all:
        return ways
    if not options.base_url:
        return {}
    from training.exam import protocols

    return protocols.ways(options.base_url, options.model, options.api_key, options.concurrency)


def main() -> None:
    """Examines set by set; results so far are kept when it is stopped."""
    options = parse()
    usual = ways_of(options)
    names = list(SETS) if "all" in options.sets else options.sets
    found: dict[str, Any] = {}
    for name in names:
        ways = ways_of_set(SETS[name], usual, options)
        rows = examine(name, SETS[name], ways, options) if ways else []
        if not rows:
            print(f"{name}: {'no question of these kinds' if ways else 'needs a server (--base-url)'}")
            continue
        print(f"\n{name}: {SETS[name].about}" + (f", {photographs.source()}" if name == "brush" else ""))
        print(report.table(rows, list(ways)))
        for way in ways:
            print(f"{way}: {report.verdict(SETS[name], rows, way)}")
        found[name] = {"summary": report.summary(rows, list(ways)), "answers": rows}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        if options.picture and name == names[0]:
            options.picture.write_text(confusion.draw(rows, next(iter(ways)), f"{name}: {SETS[name].about}"))


if __name__ == "__main__":
    main()
