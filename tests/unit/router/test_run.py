"""How the router builds its scheduler from the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.messages.step import DraftTimes, RankReady
from mmserve.router import run
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.http.http_services import make_deployment
from tests.fakes.processes.samples import Samples
from tests.unit.router.builders import request


def test_limits_of_the_scheduler_follow_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[SchedulerConfig, dict[str, Any]]] = []

    def build(config: SchedulerConfig, **options: Any) -> Scheduler:
        built.append((config, options))
        return Scheduler(config, **options)

    monkeypatch.setattr(run, "Scheduler", build)
    deployment = make_deployment("/nowhere", max_num_seqs=3, max_num_batched_tokens=48, max_step_ms=250.0)
    samples: Any = Samples()
    draft = DraftTimes(0.002, 0.0001)
    run._scheduler(deployment, RankReady(num_blocks=7, block_tokens=16, draft=draft), samples)
    ((config, options),) = built
    assert config == SchedulerConfig(
        max_num_seqs=3,
        max_num_batched_tokens=48,
        max_model_len=deployment.max_model_len,
        max_step_s=0.25,
        draft_times=draft,
        shares_cores=True,
    )
    assert (options["num_blocks"], options["block_tokens"]) == (7, 16)


@pytest.mark.parametrize(
    ("shares", "options"),
    [(True, {}), (False, {"vision": False}), (False, {"encoders": "127.0.0.1:8101"})],
)
def test_visual_servers_of_a_cpu_share_its_cores_unless_others_encode(
    monkeypatch: pytest.MonkeyPatch, shares: bool, options: dict[str, Any]
) -> None:
    built: list[SchedulerConfig] = []

    def build(config: SchedulerConfig, **others: Any) -> Scheduler:
        built.append(config)
        return Scheduler(config, **others)

    monkeypatch.setattr(run, "Scheduler", build)
    samples: Any = Samples()
    run._scheduler(make_deployment("/nowhere", **options), RankReady(num_blocks=7, block_tokens=16), samples)
    assert [config.shares_cores for config in built] == [shares]


def test_the_first_prompt_is_cut_by_the_time_of_the_warm_up() -> None:
    """Without it the first step had all of --max-num-batched-tokens: minutes on a slow machine."""
    samples: Any = Samples()
    deployment = make_deployment("/nowhere", max_num_batched_tokens=2048, max_step_ms=100.0)
    ready = RankReady(num_blocks=100, block_tokens=16, chunk_tokens=16, chunk_s=0.08)
    scheduler = run._scheduler(deployment, ready, samples)
    scheduler.receive(request("a", range(100), max_tokens=2))
    plan = scheduler.schedule()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [80], (
        "four times 100 ms, as nothing decodes and few tokens fit, at 5 ms a token"
    )
