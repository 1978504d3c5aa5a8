"""The operations of the C++ kernels compute what torch computes."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.linear_method import LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import FeedForward, SelfAttention
from mmserve.model_backend.platforms.cpu.linear.packing import KernelLinear, RoundedKernelLinear
from mmserve.model_backend.platforms.cpu.ops import ACTIVATIONS, KernelOps
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def ops() -> KernelOps:
    return KernelOps(kernels())


@pytest.mark.parametrize("size", [128, 100], ids=["whole vectors", "falls back to torch"])
def test_rms_norm(ops: KernelOps, size: int) -> None:
    x, weight = random(70, size), random(size, seed=1)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), F.rms_norm(x, (size,), weight, 1e-5))


@pytest.mark.parametrize("size", [48, 44], ids=["whole vectors", "falls back to torch"])
def test_layer_norm(ops: KernelOps, size: int) -> None:
    x, weight, bias = random(2, 7, size) * 3 + 1, random(size, seed=1), random(size, seed=2)
    expected = F.layer_norm(x, (size,), weight, bias, 1e-5)
    torch.testing.assert_close(ops.layer_norm(x, weight, bias, 1e-5), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [128, 104], ids=["whole vectors", "part of a vector"])
def test_activations(ops: KernelOps, size: int) -> None:
    x = torch.cat((random(70, size), torch.full((1, size), -200.0), torch.full((1, size), 200.0)))
    gate, up = x[:, : size // 2 + 4].chunk(2, dim=-1) if size % 16 else x.chunk(2, dim=-1)
    fused = torch.cat((gate, up), dim=-1)
    plain = TorchOps()
    for name in (*ACTIVATIONS, "relu"):
        torch.testing.assert_close(ops.activation(name)(fused.clone()), plain.activation(name)(fused))
        torch.testing.assert_close(ops.act_and_mul(name)(fused.clone()), plain.activation(name)(gate) * up)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_for_bfloat16_err_by_less_than_its_rounding(name: str) -> None:
    """By a fortieth of its last bit where results are not tiny."""
    ops, last_bit = KernelOps(kernels(), rounds=True), 2.0**-8
    x = torch.cat((torch.linspace(-1, 1, 4001), torch.linspace(-20, 20, 4001), torch.tensor([-1e30, -200, 200, 1e30])))
    expected = TorchOps().activation(name)(x.double())
    tolerance = torch.where(x > -1, expected.abs() * last_bit / 39, 2e-5)
    found = ops.activation(name)(x[None].clone())[0]
    assert ((found - expected).abs() <= tolerance).all()
    gated = ops.act_and_mul(name)(torch.stack((x, x.flip(0))).view(1, -1))[0]
    assert ((gated - expected * x.flip(0)).abs() <= tolerance * x.flip(0).abs() + 1e-30).all()
    spoiled = torch.tensor([[torch.nan, -torch.nan, 1.0, 0.0]])
    assert ops.activation(name)(spoiled.clone()).isnan().tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(
    "rows", [slice(None), slice(10, 300), slice(None, None, 2)], ids=["all", "some", "not adjacent"]
)
def test_a_scaled_addend_is_added_to_its_rows_alone(ops: KernelOps, rows: slice) -> None:
    x, scale = random(400, 44), random(44, seed=2)
    addend, expected = random(*x[rows].shape, seed=1), x.clone()
    expected[rows] += addend * scale
    ops.add_scaled_(x[rows], addend, scale)
    torch.testing.assert_close(x, expected)


class Layer(NamedTuple):
    method: LinearMethod
    bias: torch.Tensor | None


def layer(outputs: int, inputs: int, seed: int, *, bias: bool, rounds: bool) -> Layer:
    shape = LinearShape.full(outputs, inputs)
    method = (RoundedKernelLinear if rounds else KernelLinear)(kernels(), shape)
    method.weight.copy_(random(outputs, inputs, seed=seed) / 8)
    method.finish_loading()
    return Layer(method, random(outputs, seed=seed + 1) if bias else None)


@pytest.mark.parametrize("rows", [1, 40, 301, 1100])
@pytest.mark.parametrize("rounds", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("gated", "activation"), [(False, "gelu"), (True, "silu"), (False, "relu")])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_feed_forward_block_gives_the_bits_of_its_operations(
    rows: int, rounds: bool, gated: bool, activation: str, scaled: bool
) -> None:
    """One block of rows, several, and so many that each is one thread's. Unknown activations are left to torch."""
    ops, size, inner = KernelOps(kernels(), rounds=rounds), 40, 56
    up = layer((1 + gated) * inner, size, 3, bias=not gated, rounds=rounds)
    down = layer(size, inner, 5, bias=True, rounds=rounds)
    norm_bias, scale = None if gated else random(size, seed=7), random(size, seed=8) if scaled else None
    block = FeedForward(random(size), norm_bias, 1e-5, up, activation, down, gated=gated, scale=scale)
    found, expected = random(rows, size), random(rows, size)
    ops.feed_forward_(found, block)
    TorchOps.feed_forward_(ops, expected, block)
    assert torch.equal(found, expected)
    assert not torch.equal(found, random(rows, size))


@pytest.mark.parametrize("lengths", [[1], [40, 7], [300], [64, 64, 64, 64, 64], [256, 1, 255, 300, 2]])
@pytest.mark.parametrize("rounds", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dim", [16, 12], ids=["whole vectors", "falls back to torch"])
def test_an_attention_block_gives_the_bits_of_its_operations(
    lengths: list[int], rounds: bool, scaled: bool, rms: bool, dim: int
) -> None:
    """Some sequences at a time, one that is longer than is computed at a time, and several of these."""
    ops, size, heads = KernelOps(kernels(), rounds=rounds), 40, 3
    qkv = layer(3 * heads * dim, size, 3, bias=not rms, rounds=rounds)
    out = layer(size, heads * dim, 5, bias=True, rounds=rounds)
    norm_bias, scale = None if rms else random(size, seed=7), random(size, seed=8) if scaled else None
    block = SelfAttention(random(size), norm_bias, 1e-5, qkv, heads, out, scale)
    found, expected = random(sum(lengths), size), random(sum(lengths), size)
    ops.self_attention_(found, lengths, block)
    TorchOps.self_attention_(ops, expected, lengths, block)
    assert torch.equal(found, expected)
    assert not torch.equal(found, random(sum(lengths), size))


@pytest.mark.parametrize("size", [16, 12], ids=["whole vectors", "falls back to torch"])
def test_norm_of_heads_changes_only_the_heads_it_is_given(ops: KernelOps, size: int) -> None:
    heads, weight = random(40, 5, size), random(size, seed=1)
    found = heads.clone()
    ops.head_norm_(found[:, 1:3], weight, 1e-5)
    torch.testing.assert_close(found[:, 1:3], F.rms_norm(heads[:, 1:3], (size,), weight, 1e-5))
    assert torch.equal(found[:, [0, 3, 4]], heads[:, [0, 3, 4]])


def test_rotary_turns_only_the_heads_it_is_given(ops: KernelOps) -> None:
    heads, angle = random(40, 5, 16), random(40, 8, seed=1)
    found, expected = heads.clone(), heads.clone().double()
    ops.rotary_(found[:, :3], angle.cos(), angle.sin())
    TorchOps().rotary_(expected[:, :3], angle.double().cos(), angle.double().sin())
    torch.testing.assert_close(found, expected.float())
    assert torch.equal(found[:, 3:], heads[:, 3:])


@pytest.mark.parametrize(
    ("lengths", "heads", "dim"),
    [
        *[((1,), 2, 16), ((65, 65), 4, 48), ((257, 3, 48), 6, 64), ((48,), 1, 32), ((70, 5), 3, 24), ((9, 9), 2, 12)],
        *[((288, 289), 2, 64), ((577, 3), 1, 24), ((1025,), 2, 72)],
    ],
    ids=str,
)
def test_encoder_attention(ops: KernelOps, lengths: tuple[int, ...], heads: int, dim: int) -> None:
    qkv = random(sum(lengths), 3 * heads * dim)
    expected = []
    for part in qkv.split(lengths):
        q, k, v = part.view(-1, 3, heads, dim).permute(1, 2, 0, 3)
        expected.append(F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1))
    for implementation in (ops, TorchOps()):
        found = implementation.encoder_attention(qkv, heads, lengths)
        torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [64, 72])
@pytest.mark.parametrize("rounds", [False, True])
def test_encoder_attention_of_a_sequence_does_not_depend_on_its_batch(dim: int, rounds: bool) -> None:
    ops, lengths, heads = KernelOps(kernels(), rounds=rounds), (40, 365, 7), 3
    qkv = random(sum(lengths), 3 * heads * dim)
    alone = [ops.encoder_attention(part, heads, (len(part),)) for part in qkv.split(lengths)]
    assert torch.equal(ops.encoder_attention(qkv, heads, lengths), torch.cat(alone))


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_numbers_that_are_not_finite_stay_so_in_encoder_attention(part: int, rounds: bool) -> None:
    """A query's reach its own row, those of keys and values all rows of the head."""
    qkv = random(70, 3, 2, 16)
    qkv[33, part, 1, 5] = torch.nan
    found = KernelOps(kernels(), rounds=rounds).encoder_attention(qkv.flatten(1), 2, (70,)).view(70, 2, 16)
    spoiled = found.isnan().any(-1)
    assert not spoiled[:, 0].any()
    assert spoiled[:, 1].tolist() == [part > 0 or row == 33 for row in range(70)]


def test_encoder_attention_rounds_the_inputs_of_both_products() -> None:
    length, heads, dim = 131, 2, 40  # one tile of keys: weights are rounded relative to the largest score of all
    q, k, v = random(length, 3, heads, dim).permute(1, 2, 0, 3)
    scores = (q / dim**0.5).bfloat16().float() @ k.bfloat16().float().mT
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    expected = (weights.bfloat16().float() @ v.bfloat16().float()) / weights.sum(-1, keepdim=True)
    qkv = torch.stack([q, k, v]).permute(2, 0, 1, 3).reshape(length, -1)
    found = KernelOps(kernels(), rounds=True).encoder_attention(qkv, heads, (length,))
    exact = KernelOps(kernels()).encoder_attention(qkv, heads, (length,))
    expected = expected.transpose(0, 1).reshape(length, -1)
    error, of_exact = (torch.dist(each, expected) / expected.norm() for each in (found, exact))
    assert error < 0.0007 < of_exact
