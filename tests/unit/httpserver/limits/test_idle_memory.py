"""Memory goes back to the kernel once a worker has no requests, and not between requests."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.idle_memory import return_memory_when_idle
from mmserve.messages.reply import ServerPhase
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.processes.samples import Samples


def make_admission() -> AdmissionControl:
    admission = AdmissionControl(8, cast(MetricsClient, Samples()))
    admission.phase = ServerPhase(phase="ready", ready=True)
    return admission


def test_memory_is_given_back_once_after_each_time_of_work_and_off_the_loop() -> None:
    async def scenario() -> list[str]:
        admission, threads, given = make_admission(), list[str](), asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def give_back() -> None:
            threads.append(threading.current_thread().name)
            loop.call_soon_threadsafe(given.release)

        task = asyncio.create_task(return_memory_when_idle(admission, give_back, idle_s=0))
        for _ in range(2):
            with admission.admit(), admission.admit():
                await asyncio.sleep(0)
            await given.acquire()
        await asyncio.sleep(0.02)
        task.cancel()
        return threads

    threads = asyncio.run(scenario())
    assert len(threads) == 2
    assert threading.current_thread().name not in threads


def test_nothing_is_given_back_while_a_request_is_in_flight() -> None:
    async def scenario() -> int:
        admission, calls = make_admission(), list[int]()
        task = asyncio.create_task(return_memory_when_idle(admission, lambda: calls.append(1), idle_s=0.01))
        with admission.admit():
            await asyncio.sleep(0)
        with admission.admit():  # before the pause was long enough
            await asyncio.sleep(0.05)
            early = len(calls)
        task.cancel()
        return early

    assert asyncio.run(scenario()) == 0
