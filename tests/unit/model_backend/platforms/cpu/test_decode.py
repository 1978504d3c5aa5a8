"""A decode step of the kernels gives the bits of its parts: embedding, layers, head, and the choice of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.platforms.cpu import decode
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.decode_graphs import SAMPLED_HERE, Decoded, DecodeGraphs, DecodeRows, GraphParts
from mmserve.model_backend.platforms.sampling import GREEDY, NOT_FINITE, Draw
from tests.fakes.models.checkpoints import make_text
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_attention import BLOCK, step_of

pytestmark = needs_compiler
LIMITS = StepLimits(max_tokens=200, max_seqs=4, max_blocks=32, block_tokens=BLOCK)
DRAWN = Draw(temperature=0.9, top_k=20, top_p=0.95, min_p=0.0, key=0x123456789ABCDEF0)


class Steps:
    """The same steps in one call, and part by part."""

    def __init__(self, path: Path, family: str, dtype: torch.dtype, quantization: str = "none") -> None:
        spec = load(make_text(path, family, hidden_size=128))
        spec = replace(spec, text=for_context(spec.text, 256))
        self.platform = CpuPlatform(dtype)
        attention = self.platform.attention(AttentionSpec.of(spec.text, TpGroup()), dtype)
        assert isinstance(attention, PagedCpuAttention)
        self.attention = attention
        self.model = load_decoder(
            spec, self.platform, attention, TpGroup(), quantization, lambda done, total, unit: None
        )
        self.sampling = self.platform.sampling()
        self.cache = random(spec.text.num_layers, *attention.kv_shape(64, BLOCK), seed=1).to(dtype)
        self.last_token = torch.arange(5)
        self.vocab_size = spec.text.vocab_size

    def graphs(self) -> DecodeGraphs | None:
        parts = (self.model, self.attention, self.cache, self.last_token, self.sampling, TpGroup(), ())
        return self.platform.decode_graphs(GraphParts(*parts, self.vocab_size, torch.float32))

    @torch.inference_mode()
    def check(self, graphs: DecodeGraphs, rows: DecodeRows) -> Decoded:
        """What the one call gives, which is what the parts give."""
        metadata = self.attention.builder(LIMITS).build(step_of([(int(at), 1) for at in rows.positions]))
        known, last_token = torch.from_numpy(rows.token_ids), self.last_token.clone()
        ids = torch.where(known < 0, last_token[rows.slots], known)
        cache, positions = self.cache.clone(), torch.from_numpy(rows.positions)[None]
        hidden = self.model.forward(self.model.embed(ids), positions, cache, metadata, torch.from_numpy(rows.sampling))
        logits = self.model.logits(hidden)
        assert logits is not None
        decoded = graphs.decode(rows, metadata)
        assert decoded is not None
        assert decoded.logits is not None
        assert torch.equal(decoded.logits, logits)
        assert torch.equal(self.cache, cache)
        assert torch.equal(decoded.read, ids[rows.sampling])
        if rows.draws:
            tokens = self.sampling.choose(logits, rows.draws, may_ban=False)
            assert decoded.tokens is not None
            assert torch.equal(decoded.tokens, tokens)
            last_token[rows.slots[rows.sampling]] = tokens
        assert torch.equal(self.last_token, last_token)
        return decoded


def rows_of(
    slots: list[int], ids: list[int], positions: list[int], sampling: list[int], draws: Sequence[Draw] | None = None
) -> DecodeRows:
    """Greedy ones by default."""
    draws = [GREEDY] * len(sampling) if draws is None else draws
    return DecodeRows(*map(np.array, (slots, ids, positions, sampling)), draws)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
def test_one_call_gives_the_bits_of_the_parts(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    steps = Steps(tmp_path, family, dtype)
    graphs = steps.graphs()
    assert graphs is not None
    here = SAMPLED_HERE
    steps.check(graphs, rows_of([2, 0, 3], [here, 7, here], [90, 40, 17], [0, 1, 2], [GREEDY, DRAWN, DRAWN]))
    steps.check(graphs, rows_of([0, 1, 3], [here, 5, here], [41, 0, 18], [0, 2], [DRAWN, GREEDY]))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_positions_beyond_those_whose_angles_are_known(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And back again. Gemma has two ropes."""
    monkeypatch.setattr(decode, "_FIRST_POSITIONS", 32)
    monkeypatch.setattr(decode, "_MORE_POSITIONS", 48)
    steps = Steps(tmp_path, family, torch.bfloat16)
    graphs = steps.graphs()
    assert graphs is not None
    for position in (30, 31, 32, 47, 48, 63, 64, 3, 200):
        steps.check(graphs, rows_of([1, 2], [SAMPLED_HERE, 3], [position, 5], [0, 1]))


def test_steps_of_other_numbers_of_rows_follow_one_another(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.bfloat16)
    graphs = steps.graphs()
    assert graphs is not None
    one, two = rows_of([1], [SAMPLED_HERE], [20], [0]), rows_of([2, 0], [4, SAMPLED_HERE], [33, 9], [1])
    for rows in (one, two, one, one, two):
        steps.check(graphs, rows)


def test_a_step_that_was_prepared_and_one_that_came_instead(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.bfloat16)
    graphs = steps.graphs()
    assert graphs is not None
    expected, other = rows_of([1], [SAMPLED_HERE], [20], [0]), rows_of([2], [4], [33], [0])
    metadata = steps.attention.builder(LIMITS).build(step_of([(20, 1)]))
    graphs.prepare(expected, metadata)
    steps.check(graphs, other)
    graphs.prepare(expected, metadata)
    steps.last_token[1] = 6  # known only after the step before
    steps.check(graphs, expected)


def test_a_step_after_one_that_could_not_be_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory for the angles, say."""
    monkeypatch.setattr(decode, "_FIRST_POSITIONS", 32)
    steps = Steps(tmp_path, "llama", torch.bfloat16)
    graphs = steps.graphs()
    assert graphs is not None
    rows, far = rows_of([1], [SAMPLED_HERE], [20], [0]), rows_of([2, 0], [4, 5], [100, 7], [0, 1])
    steps.check(graphs, rows)

    def fail(self: Rotary, positions: torch.Tensor) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Rotary, "angles", fail)
        with pytest.raises(MemoryError):
            graphs.decode(far, steps.attention.builder(LIMITS).build(step_of([(100, 1), (7, 1)])))
    steps.check(graphs, rows)
    steps.check(graphs, far)


def test_logits_of_many_rows_have_memory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_MAX_LOGITS_KEPT", 0)
    steps = Steps(tmp_path, "llama", torch.bfloat16)
    graphs = steps.graphs()
    assert graphs is not None
    first = steps.check(graphs, rows_of([1, 2], [3, 4], [20, 5], [0, 1], [GREEDY, DRAWN]))
    assert first.logits is not None
    kept = first.logits.clone()
    steps.check(graphs, rows_of([1, 2], [5, 6], [21, 6], [0, 1], [GREEDY, DRAWN]))
    assert torch.equal(first.logits, kept)


def test_a_quantized_head(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.bfloat16, "int8")
    graphs = steps.graphs()
    assert graphs is not None
    steps.check(graphs, rows_of([1, 2], [3, 4], [20, 5], [0, 1], [GREEDY, DRAWN]))


def test_without_draws_nothing_is_chosen(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.float32)
    graphs = steps.graphs()
    assert graphs is not None
    assert steps.check(graphs, rows_of([1, 0], [3, SAMPLED_HERE], [20, 9], [0, 1], [])).tokens is None


def test_a_row_that_is_not_finite_gets_no_token(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.float32)
    graphs = steps.graphs()
    assert graphs is not None
    steps.cache.fill_(float("nan"))
    metadata = steps.attention.builder(LIMITS).build(step_of([(20, 1)]))
    with torch.inference_mode():
        decoded = graphs.decode(rows_of([1], [3], [20], [0]), metadata)
    assert decoded is not None
    assert decoded.tokens is not None
    assert decoded.tokens.tolist() == [NOT_FINITE]
    assert steps.last_token.tolist() == [0, 0, 2, 3, 4]


def test_steps_that_are_left_to_the_parts(tmp_path: Path) -> None:
    steps = Steps(tmp_path, "llama", torch.float32)
    graphs = steps.graphs()
    assert graphs is not None
    before, metadata = steps.cache.clone(), steps.attention.builder(LIMITS).build(step_of([(20, 1)]))
    assert graphs.decode(rows_of([1], [3], [20], []), metadata) is None, "none is sampled from"
    assert torch.equal(steps.cache, before)
    experts = Steps(tmp_path / "experts", "qwen3_moe", torch.float32)
    assert experts.graphs() is None
