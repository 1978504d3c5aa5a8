"""Mutation score of the pure modules: ``python -m tests.mutation_score [NAME PATTERN ...]`` (``make mutants``).

Mutants are made by mutmut. ``tests.mutations`` has mutations of the model families, which are written by hand.

mutmut changes one expression at a time in the modules that ``[tool.mutmut]`` in pyproject.toml lists, and runs the
tests that reach it. A mutant that no test notices has survived. The score of a module is the share of its mutants that
were noticed, without those that are equivalent to the original (``EQUIVALENT``).

All of them take about 15 minutes on two quiet cores. Results are kept in ``mutants/``: a second run tests only what
has changed. A pattern chooses mutants by name: ``'*scheduler*'``, or ``'*3'`` for a sample of an eighth.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

TARGET = 0.9
_MUTMUT = str(Path(sys.executable).with_name("mutmut"))
_SEPARATORS = re.compile(r"\.x[_ǁ]")
_STRING = re.compile(r"""[rbf]*("[^"]*"|'[^']*')""")
_NOTICED = ("killed", "timeout", "segfault", "suspicious", "caught by type check")

EQUIVALENT = (
    # (pattern of "original line -> mutated line", why no test can tell them apart)
    (r"strict=True.* -> ", "zip's strict is a check of equal lengths, which hold at every call"),
    (r"self\.num_frees (= 0 -> |\+= 1 -> self\.num_frees (\+= 2|-= 1))", "only asked whether it has changed"),
    (r"manager: table\.cacheable = False -> table\.cacheable = None", "only asked as a condition"),
    (r"prefix_cache: self\.root = Node\(", "the root's key and block are not read"),
    (r"cast\(", "cast does nothing at run time"),
    (r"extents: .*self\._insert\(0, 0, nbytes\) -> .*_insert\(1, 0, nbytes\)", "inserting into an empty list"),
    (r"extents: .*next\(ordered, \(0, 0\)\) -> .*\(1, 0\)", "the start of an extent without size is not used"),
)


class Mutant(NamedTuple):
    """``change``: the line and what it became, empty unless the mutant survived."""

    name: str
    status: str
    change: str

    @property
    def module(self) -> str:
        return _SEPARATORS.split(self.name)[0]


def tested(patterns: list[str]) -> list[Mutant]:
    """Run mutmut on the mutants that match (all without a pattern). Returns the mutants with a verdict."""
    subprocess.run([_MUTMUT, "run", *patterns], check=True)
    printed = subprocess.run([_MUTMUT, "results", "--all", "true"], check=True, capture_output=True, text=True).stdout
    verdicts = [line.strip().rsplit(": ", 1) for line in printed.splitlines() if ": " in line]
    return [
        Mutant(name, status, "" if status in _NOTICED else change_of(name))
        for name, status in verdicts
        if status != "not checked"
    ]


def change_of(name: str) -> str:
    """``module: original line -> mutated line`` of a mutant."""
    diff = subprocess.run([_MUTMUT, "show", name], check=True, capture_output=True, text=True).stdout.splitlines()
    body = [line for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    old, new = (" ".join(line[1:].strip() for line in body if line[0] == sign) for sign in "-+")
    return f"{_SEPARATORS.split(name)[0].rsplit('.', 1)[-1]}: {old} -> {new}"


def equivalent(change: str) -> bool:
    """True if no test should tell the mutant from the original."""
    old, _, new = change.partition(": ")[2].partition(" -> ")
    message = re.search(r"\bassert\b|\braise\b|\blogger\.|^f?\"", old) is not None
    if message and _STRING.sub("", old) == _STRING.sub("", new):
        return True  # only the wording of a message differs
    return any(re.search(pattern, change) for pattern, _ in EQUIVALENT)


def main() -> int:
    """Print survivors and the score of each module; 1 if the score of all is below the target."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant in tested(sys.argv[1:]):
        verdict = "noticed" if mutant.status in _NOTICED else "same" if equivalent(mutant.change) else "survived"
        counts[mutant.module][verdict] += 1
        if verdict == "survived":
            print(f"survived  {mutant.name}\n          {mutant.change}")
    for module, count in sorted(counts.items()):
        print(f"{score(count):6.1%}  {count['noticed']:4} of {count['noticed'] + count['survived']:4}  {module}")
    everything = sum(counts.values(), Counter[str]())
    print(f"{score(everything):6.1%}  of all; {everything['same']} equivalent mutants left out; target {TARGET:.0%}")
    return int(score(everything) < TARGET)


def score(count: Counter[str]) -> float:
    """The share of mutants that were noticed, of those that are not equivalent."""
    return count["noticed"] / max(1, count["noticed"] + count["survived"])


if __name__ == "__main__":
    sys.exit(main())
