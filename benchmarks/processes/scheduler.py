"""Cost of planning a step and applying its result: the scheduler alone, 256 sequences running, 10 to 10,000 waiting.

    python -m benchmarks.processes.scheduler [--json FILE]

Two cases. "ample": all slots taken, KV blocks to spare. "full": slots free, but no KV blocks for waiting sequences;
sequences end during the measurement, and after each end the scheduler looks at the queue again. Measured is the CPU
time of this thread. Every repeat plans the same steps; the least time of each step counts, to exclude other work on the
machine.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from array import array

from benchmarks.load.report import Row, table, write_json
from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig

RUNNING = 256
WAITING = (10, 100, 1_000, 10_000)
STEPS = 300
REPEATS = 5
PROMPT_TOKENS = 64
BLOCK_TOKENS = 16
_BLOCKS_PER_SEQUENCE = 16
"""Fewer than a sequence needs in the end, so a full cache cannot hold all answers."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    rows = [_measure(num_waiting, full=full) for full in (False, True) for num_waiting in WAITING]
    print(table(rows))
    write_json(arguments.json, rows)


def _measure(num_waiting: int, *, full: bool) -> Row:
    repeats = []
    for _ in range(REPEATS):
        scheduler, nbytes = _loaded(num_waiting, full=full)
        repeats.append([_step(scheduler) * 1e3 for _ in range(STEPS)])
    times_ms = sorted(map(min, *repeats))
    return {
        "KV cache": "full" if full else "ample",
        "waiting": num_waiting,
        "running": scheduler.num_running,
        "step_p50_ms": statistics.median(times_ms),
        "step_p99_ms": times_ms[int(0.99 * len(times_ms))],
        "bytes_per_waiting": float(nbytes // num_waiting),
    }


def _loaded(num_waiting: int, *, full: bool) -> tuple[Scheduler, int]:
    """A scheduler with RUNNING sequences started, and the bytes of memory that the waiting ones take."""
    num_blocks = RUNNING * _BLOCKS_PER_SEQUENCE
    config = SchedulerConfig(max_num_seqs=RUNNING, max_num_batched_tokens=20_000, max_model_len=4096)
    scheduler = Scheduler(
        config,
        num_blocks=num_blocks if full else 100 * num_blocks,
        block_tokens=BLOCK_TOKENS,
        now=time.monotonic,
        record=lambda name, value: None,
    )
    for index in range(RUNNING):
        # With a full cache, some sequences end during the measurement and others start.
        scheduler.receive(_request(f"running-{index}", max_tokens=60 + index if full else 100_000))
    for _ in range(36):  # at most eight start in each
        _step(scheduler)
    waiting = [_request(f"waiting-{index}", max_tokens=200) for index in range(num_waiting)]
    gc.collect()
    tracemalloc.start()
    for request in waiting:
        scheduler.receive(request)
    nbytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return scheduler, nbytes


def _step(scheduler: Scheduler) -> float:
    """Seconds of CPU time to plan one step, apply its result and take the replies."""
    started_s = time.thread_time()
    plan = scheduler.schedule()
    planned_s = time.thread_time() - started_s
    assert plan is not None
    result = StepResult(step_id=plan.step_id, tokens=_tokens(plan))
    started_s = time.thread_time()
    scheduler.apply(plan, result)
    scheduler.take_replies()
    return planned_s + time.thread_time() - started_s


def _tokens(plan: StepPlan) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((step.slot, (7,)) for step in plan.steps if step.sample)


def _request(request_id: str, max_tokens: int) -> GenerateRequest:
    """A request with a prompt of its own: no part of it is in the prefix cache."""
    first = abs(hash(request_id)) % 30_000
    return GenerateRequest(
        id=request_id,
        reply_to=0,
        prompt_ids=array("q", range(first, first + PROMPT_TOKENS)).tobytes(),
        spans=(),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, stop_token_ids=(2,)),
        output_ids=b"",
        arrival_s=0.0,
        attempt=0,
    )


if __name__ == "__main__":
    main()
