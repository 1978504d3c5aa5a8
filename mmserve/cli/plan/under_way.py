"""Bodies and pictures under way: how much memory they take at most, and lower limits for a small memory. Pure."""

from __future__ import annotations

import math

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.resolved.budgets import budgets_of
from mmserve.runtime.byte_budget import MIB

_LEAST_PIXELS_MB = 128.0
"""Three pictures of 12 megapixels, as a telephone makes them. Larger ones than fit the budget are refused."""


def under_way_nbytes(config: Config, model: ModelSpec, arena_nbytes: int) -> int:
    """The sum of the budgets, over all processes."""
    budgets = budgets_of(config, arena_nbytes)
    of_worker = budgets.body_nbytes + (budgets.fetch_nbytes if model.vision else 0)
    return config.http_workers * of_worker + (budgets.pixel_nbytes if model.vision else 0)


def lowered(config: Config, model: ModelSpec, arena_nbytes: int, room_nbytes: int) -> Config:
    """``config`` with lower budgets, so that their sum is in the room if it can be: each still holds the largest body.
    Those that the user has given stay as they are."""
    plain, budgets, workers = Config(), budgets_of(config, arena_nbytes), config.http_workers
    largest_bodies_mb = config.max_body_mb * workers
    usual = {"body_budget_mb": (workers * budgets.body_nbytes / MIB, largest_bodies_mb)}
    if model.vision:
        usual["fetch_budget_mb"] = (workers * budgets.fetch_nbytes / MIB, largest_bodies_mb)
        usual["pixel_budget_mb"] = (budgets.pixel_nbytes / MIB, _LEAST_PIXELS_MB)
    open_ones = {name: mb for name, mb in usual.items() if getattr(config, name) == getattr(plain, name)}
    given_mb = sum(now for name, (now, _) in usual.items() if name not in open_ones)
    now_mb, least_mb = (sum(column) for column in zip(*open_ones.values(), strict=True)) if open_ones else (0.0, 0.0)
    spare_mb = room_nbytes / MIB - given_mb - least_mb
    share = min(1.0, max(0.0, spare_mb / (now_mb - least_mb))) if now_mb > least_mb else 0.0
    if share == 1:
        return config
    lower = {
        name: max(least, float(math.floor(least + share * (now - least)))) for name, (now, least) in open_ones.items()
    }
    return msgspec.structs.replace(config, **lower)
