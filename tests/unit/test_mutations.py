"""Mutations of model families have targets, and what pytest says about them is read as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmserve
from mmserve.checkpoint.registry import ARCHITECTURES
from tests.mutations.families import FAMILIES, quantized
from tests.mutations.mutation import Mutation, TargetError, mutate, mutated
from tests.mutations.verdict import verdict_of

PACKAGE = Path(mmserve.__file__).parent


@pytest.mark.parametrize("name", FAMILIES)
def test_every_mutation_has_its_target(name: str) -> None:
    family = FAMILIES[name]
    for mutation in family.mutations:
        assert mutated((PACKAGE / mutation.file).read_text(), mutation)
    assert len({mutation.what for mutation in family.mutations}) == len(family.mutations) > 0
    assert all((Path(__file__).parent / file).is_file() for file in family.tests)


def test_every_family_has_mutations() -> None:
    """Pixtral's tower behind LLaVA's architecture has its own; InternVL's other format is tested with the first."""
    families = set(FAMILIES) - set(quantized.FAMILIES)
    assert families == set(ARCHITECTURES.values()) - {"internvl_chat"} | {"pixtral"}


def test_a_mutation_changes_the_copy(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("total = first + second\n")
    mutate(tmp_path, Mutation("a difference", "sums.py", "first + second", "first - second"))
    assert (tmp_path / "sums.py").read_text() == "total = first - second\n"


@pytest.mark.parametrize(
    ("mutation", "message"),
    [
        (Mutation("a", "gone.py", "first", "second"), "there is no mmserve/gone.py"),
        (Mutation("a", "sums.py", "third", "second"), "occurs 0 times"),
        (Mutation("a", "sums.py", "first", "second"), "occurs 2 times"),
        (Mutation("a", "sums.py", "first + second", "first +"), "is not Python"),
        (Mutation("a", "sums.py", "# of both", "# of all"), "changes nothing"),
    ],
    ids=str,
)
def test_a_mutation_without_a_target_is_an_error(tmp_path: Path, mutation: Mutation, message: str) -> None:
    (tmp_path / "sums.py").write_text("first = 1\ntotal = first + second  # of both\n")
    with pytest.raises(TargetError, match=message):
        mutate(tmp_path, mutation)
    assert "first + second" in (tmp_path / "sums.py").read_text()


SUMMARY = "..F\n=== summary ===\n{} tests/unit/a/test_b.py::test_c[x-y, z] - AssertionError: a - b\n1 failed\n"


@pytest.mark.parametrize(
    ("exit_code", "output", "expected"),
    [
        (0, "12 passed", ("SURVIVED", "", "")),
        (1, SUMMARY.format("FAILED"), ("killed", "a/test_b.py::test_c[x-y, z]", "AssertionError: a - b")),
        (1, SUMMARY.format("ERROR"), ("killed", "a/test_b.py::test_c[x-y, z]", "AssertionError: a - b")),
        (1, "FAILED tests/unit/a/test_b.py::test_c\n", ("killed", "a/test_b.py::test_c", "")),
        (1, "no summary\n", ("ERROR", "pytest ended with 1: no summary", "")),
        (2, SUMMARY.format("ERROR") + "Interrupted\n\n", ("ERROR", "pytest ended with 2: Interrupted", "")),
        (5, "3 deselected\n", ("ERROR", "pytest ended with 5: 3 deselected", "")),
    ],
)
def test_only_a_failed_test_kills(exit_code: int, output: str, expected: tuple[str, str, str]) -> None:
    assert verdict_of(exit_code, output) == expected
