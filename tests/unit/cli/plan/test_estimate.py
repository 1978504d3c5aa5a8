"""How much fits, and how fast it decodes at most."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, MoeSpec, TextSpec
from mmserve.cli.plan.estimate import Estimate, estimate
from mmserve.cli.plan.hardware import GPU_NAMES, Hardware, gpu, read_rate
from mmserve.cli.plan.model_facts import ModelFacts
from mmserve.cli.plan.under_way import lowered
from mmserve.config.config import Config
from mmserve.supervisor.startup.weight_memory import PartBytes
from tests.fakes.http.http_services import make_deployment

GIB = 1 << 30
TEXT = TextSpec(
    hidden_size=1024,
    intermediate_size=4096,
    layers=(LayerSpec(),) * 8,
    num_heads=16,
    num_kv_heads=4,
    head_dim=64,
    vocab_size=32_000,
    max_position=8192,
    rms_eps=1e-6,
)
MODEL = ModelSpec(family="llama", path="/x", text=TEXT)
TOKEN_NBYTES = 2 * 8 * 4 * 64 * 2
CPU = Hardware("2 cores", 16 * GIB, 40e9, False, "measured")


DRAFT = ModelFacts(
    ModelSpec(family="llama", path="/y", text=replace(TEXT, layers=(LayerSpec(),) * 2)),
    {"bfloat16": PartBytes(GIB // 4, 0), "float32": PartBytes(GIB // 2, 0)},
    False,
)
DRAFT_TOKEN_NBYTES = TOKEN_NBYTES // 4


def _estimate(
    hardware: Hardware = CPU,
    model: ModelSpec = MODEL,
    rows: int = 0,
    *,
    draft: ModelFacts | None = None,
    tower: int = 0,
    **options: Any,
) -> Estimate:
    facts = ModelFacts(model, {"bfloat16": PartBytes(2 * GIB, tower)}, False)
    return estimate(Config(**options), facts, "bfloat16", hardware, rows, draft)


def test_what_the_cache_has_room_for_is_what_the_memory_leaves() -> None:
    found = _estimate()
    assert found.kv_bytes_per_token == TOKEN_NBYTES
    used = found.text_weights_bytes + found.other_bytes + found.arena_bytes + found.kv_tokens * TOKEN_NBYTES
    assert 0.89 * CPU.memory_nbytes < used <= 0.9 * CPU.memory_nbytes
    assert [(fit.tokens, fit.requests) for fit in found.fits] == [(4096, found.kv_tokens // 4096)]


def test_a_memory_that_is_too_small_for_one_context_has_no_room() -> None:
    small = CPU._replace(memory_nbytes=4 * GIB)
    assert _estimate(small, max_model_len=1024).kv_tokens > 1024
    assert _estimate(CPU._replace(memory_nbytes=3 * GIB)).kv_tokens == 0


def test_pictures_count_as_their_rows() -> None:
    found = _estimate(rows=576)
    assert [(fit.tokens, fit.pictures) for fit in found.fits] == [(4096, 0), (512 + 576, 1), (512 + 8 * 576, 8)]
    assert found.picture_kv_bytes == 576 * TOKEN_NBYTES
    assert found.picture_arena_bytes >= 576 * 1024 * 4  # embeddings are float32 on a CPU


def test_a_draft_model_takes_weights_and_a_cache_for_the_same_tokens() -> None:
    without, found = _estimate(), _estimate(draft=DRAFT, speculative_model="y")
    assert found.draft_weights_bytes == GIB // 4
    assert found.kv_bytes_per_token == TOKEN_NBYTES + DRAFT_TOKEN_NBYTES
    left = without.kv_tokens * TOKEN_NBYTES - GIB // 4
    assert found.kv_tokens == pytest.approx(left // (TOKEN_NBYTES + DRAFT_TOKEN_NBYTES), abs=1)
    assert found.speeds == without.speeds
    assert "--speculative-model y" in found.flags


def test_the_first_rank_alone_has_the_draft_model() -> None:
    found = _estimate(draft=DRAFT, speculative_model="y", tp=2, kv_cache_gb=1)
    assert found.kv_bytes_per_token == TOKEN_NBYTES + DRAFT_TOKEN_NBYTES, "of both ranks together"
    assert found.kv_tokens == GIB // (TOKEN_NBYTES // 2 + DRAFT_TOKEN_NBYTES), "as the ranks are given it"
    on_cards = _estimate(gpu("h200"), draft=DRAFT, speculative_model="y", tp=2)
    assert on_cards.kv_bytes_per_token == TOKEN_NBYTES // 2 + DRAFT_TOKEN_NBYTES
    assert on_cards.draft_weights_bytes == GIB // 4


def test_huge_pages_are_not_taken_from_the_free_memory() -> None:
    vision = make_deployment("/run").model
    usual, huge = _estimate(model=vision), _estimate(model=vision, arena_huge_pages=True)
    gained = (huge.kv_tokens - usual.kv_tokens) * usual.kv_bytes_per_token
    assert gained == pytest.approx(usual.arena_bytes, rel=0.01)
    assert "--arena-huge-pages" in huge.flags


def test_further_processes_take_memory() -> None:
    vision = make_deployment("/run").model
    one = _estimate(model=vision, tower=GIB)
    several = _estimate(model=vision, tower=GIB, visual_workers=2, http_workers=3)
    assert several.tower_weights_bytes == 2 * GIB
    assert several.other_bytes > one.other_bytes
    assert {"--visual-workers 2", "--http-workers 3"} < {*several.flags}


def test_traffic_takes_at_most_its_budgets() -> None:
    mib, vision = 1 << 20, make_deployment("/run").model
    budgets = {"pixel_budget_mb": 100.0, "body_budget_mb": 64.0, "fetch_budget_mb": 32.0, "http_workers": 2}
    assert _estimate(**budgets).traffic_bytes == 64 * mib, "no pictures"
    assert _estimate(model=vision, **budgets).traffic_bytes == (64 + 32 + 100) * mib


VISION = make_deployment("/run").model


def _in_all(found: Estimate) -> int:
    weights = found.text_weights_bytes + found.tower_weights_bytes
    kv_nbytes = found.kv_tokens * found.kv_bytes_per_token
    return weights + found.other_bytes + found.arena_bytes + kv_nbytes + found.traffic_bytes


@pytest.mark.parametrize("gib", [3.6, 4, 5, 6, 8, 64])
def test_in_any_memory_the_proposed_options_fit_together(gib: float) -> None:
    memory_nbytes = int(gib * GIB)
    found = _estimate(CPU._replace(memory_nbytes=memory_nbytes), VISION)
    assert found.kv_tokens >= found.context
    assert _in_all(found) <= memory_nbytes
    budgets = [float(flag.split()[1]) for flag in found.flags if "-budget-mb" in flag]
    if found.traffic_bytes == _estimate(model=VISION).traffic_bytes:
        assert not budgets, "the defaults fit"
    else:
        assert sum(budgets) * (1 << 20) == found.traffic_bytes


@pytest.mark.parametrize("max_body_mb", [0.5, 64.5])
def test_the_lowest_budgets_hold_the_largest_body(max_body_mb: float) -> None:
    lowest = lowered(Config(max_body_mb=max_body_mb), VISION, GIB, 0)
    assert (lowest.body_budget_mb, lowest.fetch_budget_mb) == (max_body_mb, max_body_mb)


def test_budgets_that_were_asked_for_stay_and_a_given_cache_goes_before_the_others() -> None:
    small = CPU._replace(memory_nbytes=9 * GIB // 2)
    given = _estimate(small, VISION, pixel_budget_mb=300.0)
    assert "--pixel-budget-mb 300" in given.flags
    assert _in_all(given) <= small.memory_nbytes
    cached = _estimate(small, VISION, kv_cache_gb=0.5)
    assert cached.kv_tokens * cached.kv_bytes_per_token == pytest.approx(GIB / 2, rel=0.01)
    assert cached.traffic_bytes < _estimate(model=VISION).traffic_bytes
    assert _in_all(cached) <= small.memory_nbytes


def test_where_nothing_fits_the_memory_that_would_do_is_told() -> None:
    small = CPU._replace(memory_nbytes=3 * GIB)
    found = _estimate(small, VISION)
    assert found.kv_tokens == 0
    assert found.least_memory_bytes > small.memory_nbytes
    enough = _estimate(CPU._replace(memory_nbytes=found.least_memory_bytes + (1 << 20)), VISION)
    assert enough.kv_tokens >= enough.context
    card = gpu("h200")._replace(memory_nbytes=GIB)
    assert _estimate(card).kv_tokens == 0
    assert _estimate(card._replace(memory_nbytes=_estimate(card).least_memory_bytes + (1 << 20))).kv_tokens


def test_cards_share_weights_and_heads() -> None:
    one, two = _estimate(gpu("h200")), _estimate(gpu("h200"), tp=2)
    assert two.text_weights_bytes == one.text_weights_bytes // 2
    assert two.kv_bytes_per_token == one.kv_bytes_per_token // 2
    assert two.kv_tokens > 2 * one.kv_tokens
    assert "--tp 2" in two.flags


def test_a_card_is_divided_as_ranks_divide_it() -> None:
    card, vision = gpu("h200"), make_deployment("/run").model
    found = _estimate(card)
    used = found.text_weights_bytes + found.other_bytes + found.kv_tokens * found.kv_bytes_per_token
    assert 0.88 * card.memory_nbytes < used < 0.9 * card.memory_nbytes, "a margin is left"
    assert _estimate(card, gpu_memory_utilization=0.5).kv_tokens < found.kv_tokens
    assert _estimate(card, enforce_eager=True).other_bytes < found.other_bytes
    one, more = (_estimate(card, model=vision, visual_batch_size=count).other_bytes for count in (1, 32))
    assert one < more


def test_layers_in_fp8_take_half_of_bfloat16() -> None:
    plain, fp8 = (_estimate(gpu("h200"), quantization=each).text_weights_bytes for each in ("none", "fp8"))
    of_layers = TEXT.num_layers * 1024 * (2 * 16 + 2 * 4) * 64 + TEXT.num_mlp_weights
    largest = 32_000 * 1024 * 2  # until it is converted
    assert plain - fp8 == of_layers - largest


def test_decoding_is_bound_by_reading_weights_and_cache() -> None:
    one, sixteen, long = _estimate().speeds
    table = 32_000 * 1024 * 2
    assert one.tokens_per_s == pytest.approx(40e9 / (2 * GIB - table + 1024 * TOKEN_NBYTES), rel=1e-2)
    assert one.tokens_per_s < sixteen.tokens_per_s < 16 * one.tokens_per_s
    assert long.tokens_per_s < one.tokens_per_s


def test_a_mixture_of_experts_reads_those_that_are_chosen() -> None:
    moe = MoeSpec(num_experts=64, top_k=2, intermediate_size=512, renormalize=True)
    sparse = replace(MODEL, text=replace(TEXT, layers=(LayerSpec(experts=True),) * 8, moe=moe))
    dense_one, sparse_one = _estimate().speeds[0], _estimate(model=sparse).speeds[0]
    assert sparse_one.tokens_per_s > 3 * dense_one.tokens_per_s
    assert _estimate(model=sparse).speeds[1].tokens_per_s < 16 * sparse_one.tokens_per_s


def test_the_command_has_the_options_that_were_planned_with() -> None:
    found = _estimate(tp=2, kv_cache_dtype="float32", max_model_len=4096)
    assert {"--tp 2", "--kv-cache-dtype float32", "--max-model-len 4096"} < {*found.flags}
    kv_gb = float(next(flag for flag in found.flags if flag.startswith("--kv-cache-gb")).split()[1])
    assert kv_gb * 2 * GIB == pytest.approx(found.kv_tokens * found.kv_bytes_per_token, rel=0.01)


def test_every_card_has_memory_and_a_rate() -> None:
    assert all(gpu(name).memory_nbytes > GIB and gpu(name).read_rate > 1e11 for name in GPU_NAMES)


def test_this_machine_reads_some_bytes() -> None:
    assert read_rate(1, seconds=0.01) > 1e6
