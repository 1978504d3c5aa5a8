"""The lag metric counts every moment of a stall."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from mmserve.httpserver.loop_lag import INTERVAL_S, sample_loop_lag
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.processes.samples import Samples


def test_a_stall_gives_one_sample_for_each_interval_in_it() -> None:
    samples = Samples()

    async def run() -> None:
        sampling = asyncio.create_task(sample_loop_lag(cast(MetricsClient, samples)))
        await asyncio.sleep(0)
        time.sleep(10 * INTERVAL_S)  # noqa: ASYNC251 - the stall
        while len(samples.recorded) < 9:  # noqa: ASYNC110 - samples have no event
            await asyncio.sleep(0)
        sampling.cancel()

    asyncio.run(run())
    assert set(samples.names()) == {"event_loop_lag_seconds"}
    lags = [value for _, value, _ in samples.recorded[:9]]
    assert lags == sorted(lags, reverse=True)
    assert lags[0] >= 8 * INTERVAL_S
