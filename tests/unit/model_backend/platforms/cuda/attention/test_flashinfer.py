"""What FlashInfer is told of a step, against torch's attention, with a stand-in that does what it is told.

Its own kernels have never run here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, Mask, StepLimits
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cuda.flashinfer import choice
from mmserve.model_backend.platforms.cuda.flashinfer.arguments import pages_of
from mmserve.model_backend.platforms.cuda.flashinfer.backend import FlashInferAttention
from mmserve.model_backend.platforms.cuda.flashinfer.choice import flashinfer_attention
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.runtime.errors import StartupError
from tests.fakes.devices import flashinfer

TRANSFERS = PlainTransfers(torch.device("cpu"))
HOPPER = (9, 0)
SPEC = AttentionSpec(4, 2, 64)


def step_of(starts: list[int], counts: list[int], block_tokens: int) -> AttentionInput:
    """Blocks in no order, and slots too."""
    num_chunks, width = len(starts), -(-max(np.add(starts, counts)) // block_tokens)
    tables = np.random.default_rng(1).permutation(num_chunks * width + 3)[: num_chunks * width].reshape(num_chunks, -1)
    slots = np.arange(num_chunks)[::-1].copy()
    mapping = [
        tables[slot, position // block_tokens] * block_tokens + position % block_tokens
        for slot, start, count in zip(slots, starts, counts, strict=True)
        for position in range(start, start + count)
    ]
    return AttentionInput(slots, np.array(starts), np.array(counts), tables, np.array(mapping))


def test_pages_end_with_the_last_token_of_a_chunk() -> None:
    step = step_of([15, 16, 0, 20], [1, 1, 16, 13], 16)
    tables = step.block_tables
    pages = pages_of(step, 0, 4, 16)
    assert pages.indptr.tolist() == [0, 1, 3, 4, 7]
    assert pages.last_page_len.tolist() == [16, 1, 16, 1]
    assert pages.query_indptr.tolist() == [0, 1, 2, 18, 31]
    assert pages.indices.tolist() == [tables[3, 0], *tables[2, :2], tables[1, 0], *tables[0, :3]]
    part = pages_of(step, 2, 4, 16)
    assert (part.indptr.tolist(), part.query_indptr.tolist()) == ([0, 1, 4], [0, 16, 29])


@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize(
    ("starts", "counts"),
    [([40, 15, 0], [1, 1, 1]), ([0, 33], [37, 7]), ([63, 16, 5, 0], [1, 1, 30, 16])],
    ids=["decodes", "prompts", "both"],
)
@pytest.mark.parametrize("spec", [SPEC, SPEC._replace(num_heads=8, masks=(Mask(), Mask(17)), attention_scale=0.3)])
def test_results_are_those_of_torch(
    spec: AttentionSpec, starts: list[int], counts: list[int], block_tokens: int
) -> None:
    step, rows = step_of(starts, counts, block_tokens), sum(counts)
    limits = StepLimits(rows, len(starts), step.block_tables.shape[1], block_tokens)
    generator = torch.Generator().manual_seed(2)
    fused = torch.randn(rows, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim, generator=generator)
    q, kv = fused[:, : spec.num_heads], fused[:, spec.num_heads :].unflatten(1, (2, spec.num_kv_heads))
    theirs = FlashInferAttention(flashinfer, spec, torch.float32, TRANSFERS)
    ours = SdpaAttention(spec, torch.float32, torch.device("cpu"))
    shape = theirs.kv_shape(step.block_tables.size + 3, block_tokens)
    caches = [torch.randn(shape, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    backends: tuple[Any, ...] = (theirs, ours)
    made = [backend.builder(limits) for backend in backends]
    for _ in range(4):  # as many as there are wrappers in turn, and one more
        built = [builder.build(step) for builder in made]
    for mask in spec.masks:
        found, expected = (
            backend.forward(q, kv.clone(), cache, metadata, mask)
            for backend, cache, metadata in zip(backends, caches, built, strict=True)
        )
        torch.testing.assert_close(found, expected)
    assert torch.equal(*caches)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capability": (7, 5)}, "compute capability is 7.5"),
        ({"spec": SPEC._replace(head_dim=80)}, "heads have 80 numbers, and it knows 64, 128, 256"),
        ({"spec": SPEC._replace(masks=(Mask(), Mask(9, whole_images=True)))}, "image tokens see those behind"),
        ({"dtype": torch.float32}, "not in float32"),
        ({"kv_dtype": torch.float8_e4m3fn}, "must be in bfloat16"),
        ({}, r"not installed \(pip install 'mmserve\[flashinfer\]'\)"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_by_name(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None if name == "flashinfer" else name)
    asked = {"spec": SPEC, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, "capability": HOPPER} | changes
    with pytest.raises(StartupError, match=f"--attention-backend flashinfer: .*{message}"):
        flashinfer_attention(**asked, transfers=TRANSFERS)  # type: ignore[arg-type]


def test_where_it_can_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: name)
    monkeypatch.setattr(choice, "import_module", lambda name: flashinfer)
    found = flashinfer_attention(SPEC, torch.bfloat16, torch.bfloat16, HOPPER, TRANSFERS)
    assert isinstance(found, FlashInferAttention)
    assert not found.supports_graphs
