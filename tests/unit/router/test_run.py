"""How the router builds its scheduler from the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.messages.step import RankReady
from mmserve.router import run
from mmserve.router.scheduler.scheduler import SchedulerConfig
from tests.fakes.http_services import make_deployment
from tests.fakes.samples import Samples


def test_limits_of_the_scheduler_follow_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[SchedulerConfig, dict[str, Any]]] = []
    monkeypatch.setattr(run, "Scheduler", lambda config, **options: built.append((config, options)))
    deployment = make_deployment("/nowhere", max_num_seqs=3, max_num_batched_tokens=48, max_step_ms=250.0)
    samples: Any = Samples()
    run._scheduler(deployment, RankReady(num_blocks=7, block_tokens=16), samples)
    ((config, options),) = built
    assert config == SchedulerConfig(
        max_num_seqs=3, max_num_batched_tokens=48, max_model_len=deployment.max_model_len, max_step_s=0.25
    )
    assert (options["num_blocks"], options["block_tokens"]) == (7, 16)
