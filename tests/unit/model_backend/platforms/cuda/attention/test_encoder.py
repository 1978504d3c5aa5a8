"""The towers' attention kernel, in Triton's interpreter: images of any sizes, each as if it were alone."""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.platforms.cuda.attention import self_test
from mmserve.model_backend.platforms.cuda.attention.encoder import EncoderAttention, encoder_work
from mmserve.model_backend.platforms.cuda.attention.tiling import Tiling
from mmserve.model_backend.platforms.cuda.ops import TritonOps
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.devices.attention import TOLERANCES
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
CPU, HEADS = torch.device("cpu"), 2
LENGTHS = (16, 1, 40, 33)


def numbers(rows: int, dim: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, 3 * HEADS * dim, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize(("dim", "dtype"), [(16, torch.float32), (72, torch.bfloat16), (64, torch.float16)])
def test_results_are_those_of_float64(dim: int, dtype: torch.dtype) -> None:
    qkv = numbers(sum(LENGTHS), dim, dtype)
    found = EncoderAttention(CPU, Tiling(32, 16, 4, 1))(qkv, HEADS, LENGTHS)
    expected = TorchOps().encoder_attention(qkv.double(), HEADS, LENGTHS)
    assert (found.double() - expected).abs().max() < TOLERANCES[dtype]


def test_an_image_has_the_same_bits_alone_and_beside_others() -> None:
    qkv, attention = numbers(sum(LENGTHS), 16), EncoderAttention(CPU, Tiling(32, 16, 4, 1))
    together = attention(qkv, HEADS, LENGTHS)
    first = sum(LENGTHS[:2])
    alone = attention(qkv[first : first + LENGTHS[2]].clone(), HEADS, LENGTHS[2:3])
    assert torch.equal(together[first : first + LENGTHS[2]], alone)


def test_an_image_does_not_meet_numbers_of_its_neighbours() -> None:
    qkv, attention = numbers(sum(LENGTHS), 16), EncoderAttention(CPU, Tiling(32, 16, 4, 1))
    expected = attention(qkv, HEADS, LENGTHS)
    qkv[sum(LENGTHS[:2]) : sum(LENGTHS[:3]), 2 * HEADS * 16 :] = torch.nan
    qkv[sum(LENGTHS[:2]), HEADS * 16 : 2 * HEADS * 16] = torch.nan
    found = attention(qkv, HEADS, LENGTHS)
    own = torch.ones(len(qkv), dtype=torch.bool)
    own[sum(LENGTHS[:2]) : sum(LENGTHS[:3])] = False
    assert torch.equal(found[own], expected[own])
    assert found[~own].isnan().all()


def test_tiles_cover_every_row_once_longest_sequence_first() -> None:
    tiles = encoder_work((5, 8, 1), 4)
    assert tiles.tolist() == [[5, 5, 13], [9, 5, 13], [0, 0, 5], [4, 0, 5], [13, 13, 14]]


@pytest.mark.parametrize(
    ("dim", "breaks", "problem"), [(16, False, ""), (20, False, "heads of 20 numbers"), (16, True, "results differ")]
)
def test_heads_that_the_kernel_cannot_compute_are_left_to_torch(
    dim: int, breaks: bool, problem: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if breaks:
        monkeypatch.setattr(EncoderAttention, "__call__", lambda self, qkv, *_: torch.zeros(len(qkv), 32))
    monkeypatch.setattr(self_test, "encoder_tiling", lambda dtype: Tiling(64, 64, 4, 1))
    qkv, ops = numbers(sum(LENGTHS), dim), TritonOps(CPU)
    expected = TorchOps().encoder_attention(qkv, HEADS, LENGTHS)
    torch.testing.assert_close(ops.encoder_attention(qkv, HEADS, LENGTHS), expected, rtol=1e-4, atol=1e-5)
    assert (problem in caplog.text) if problem else not caplog.text
