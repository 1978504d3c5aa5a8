"""Budgets and settings that are derived from the options before any process starts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mmserve.runtime.byte_budget import MIB
from tests.fakes.http.http_services import make_deployment


@pytest.mark.parametrize(
    ("options", "short_nbytes"),
    [({}, 512 << 10), ({"http_workers": 4}, 128 << 10), ({"body_budget_mb": 64, "max_body_mb": 2}, 64 << 10)],
)
def test_bodies_that_never_wait_are_at_most_the_budget_in_all(options: dict[str, float], short_nbytes: int) -> None:
    deployment = make_deployment("/nowhere", **options)
    budgets = deployment.budgets
    assert budgets.short_body_nbytes == short_nbytes
    assert budgets.short_body_nbytes * deployment.config.max_queued_requests <= budgets.body_nbytes


def test_bodies_shorter_than_64_kib_never_wait() -> None:
    assert make_deployment("/nowhere", body_budget_mb=2, max_body_mb=2).budgets.short_body_nbytes == MIB // 16


def test_budgets_in_the_arena_follow_their_options() -> None:
    deployment = make_deployment("/nowhere")
    assert deployment.budgets.embed_nbytes == deployment.arena_nbytes
    assert deployment.budgets.data_nbytes == deployment.arena_nbytes // 2
    budgets = make_deployment("/nowhere", embed_budget_mb=0.5, data_budget_mb=0.25, pixel_budget_mb=3).budgets
    assert (budgets.embed_nbytes, budgets.data_nbytes, budgets.pixel_nbytes) == (MIB // 2, MIB // 4, 3 * MIB)


@pytest.mark.parametrize(
    ("device", "options", "overlaps"),
    [
        ("cpu", {}, False),
        ("cuda", {}, True),
        ("cuda", {"speculative": "ngram"}, False),
        ("cuda", {"speculative_model": "small"}, False),
        ("cpu", {"overlap_scheduling": True}, True),
        ("cuda", {"overlap_scheduling": False}, False),
    ],
)
def test_steps_overlap_on_a_gpu_without_speculation(device: str, options: dict[str, Any], overlaps: bool) -> None:
    assert replace(make_deployment("/nowhere", **options), device=device).overlaps == overlaps
