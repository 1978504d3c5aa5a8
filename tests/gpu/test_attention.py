"""On a GPU the attention kernels compute what float64 does, give a row the same bits in any batch, and run in a graph.

Skipped without a GPU, as in CI; unit/model_backend/platforms/cuda runs the same kernels in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmserve.model_backend.attention.interface import Mask
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.devices.attention import TOLERANCES, Problem, Step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device; on a CPU: unit/model_backend/platforms/cuda"
    ),
]
CHUNKS = ((700, 1), (256, 1), (255, 1), (0, 1), (-1, 1), (300, 200), (0, 17), (510, 9), (1000, 90))


def attention(problem: Problem):  # type: ignore[no-untyped-def]
    """The backend with the sizes for this GPU."""
    from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
    from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
    from mmserve.model_backend.platforms.cuda.attention.tiling import tiling_of

    gpu = Gpu.of(torch.device("cuda", 0))
    tiling = tiling_of(problem.spec, problem.dtype, gpu.shared_bytes)
    return TritonAttention(problem.spec, gpu.device, tiling, gpu.processors * tiling.split_programs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("group", "kv_heads", "dim"), [(4, 2, 128), (7, 1, 64), (1, 3, 80), (2, 1, 256), (16, 1, 96)])
def test_results_are_those_of_float64(group: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    masks = (Mask(), Mask(100), Mask(300, whole_images=True))
    problem = Problem(CHUNKS, group, kv_heads, dim, dtype, masks=masks, images=((310, 420), (430, 440)))
    step, backend = Step(problem, "cuda"), attention(problem)
    for mask in masks:
        out = step.run(backend, mask)
        assert step.error(out, mask) < TOLERANCES[dtype]
        assert torch.equal(step.run(backend, mask), out)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="this GPU has no fp8 of this kind"
)
def test_a_cache_in_fp8_holds_what_torch_rounds() -> None:
    problem = Problem(CHUNKS, group=4, kv_heads=2, dim=128, dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn)
    step, backend = Step(problem, "cuda"), attention(problem)
    assert step.error(step.run(backend)) < TOLERANCES[problem.dtype]
    q, kv, cache = step.tensors(backend)
    kv.copy_(torch.randn(kv.shape, generator=torch.Generator().manual_seed(1)) * 300)
    backend.forward(q, kv, cache, backend.builder(problem.limits).build(step.input))
    stored = cache.flatten(0, 1)[torch.from_numpy(step.input.slot_mapping).cuda()]
    assert torch.equal(stored.float(), kv.clamp(-448, 448).to(cache.dtype).float())


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    together = Problem(((700, 1), (300, 1), (0, 200)), group=4, dim=128, dtype=torch.bfloat16)
    expected = Step(together, "cuda").run(attention(together))
    first = replace(together, chunks=together.chunks[:1])
    assert torch.equal(Step(first, "cuda").run(attention(first)), expected[:1])


def test_a_row_of_a_draft_has_the_same_bits_as_alone() -> None:
    draft = Problem(((508, 9),), group=4, kv_heads=2, dim=128, dtype=torch.bfloat16)
    expected = Step(draft, "cuda").run(attention(draft))
    for index in (0, 3, 4, 8):
        row = replace(draft, chunks=((508 + index, 1),), length=517)
        assert torch.equal(Step(row, "cuda").run(attention(row))[0], expected[index])


def test_a_captured_graph_computes_other_lengths() -> None:
    """Of a step of the same number of rows: all that the kernels read of the lengths is in the record."""
    captured, replayed = (
        Problem(
            tuple((length, 1) for length in lengths), group=4, kv_heads=2, dim=128, dtype=torch.bfloat16, num_blocks=200
        )
        for lengths in ((900, 800), (600, 3))
    )
    backend = attention(captured)
    builder = backend.builder(captured.limits)
    steps = [Step(each, "cuda") for each in (captured, replayed)]
    expected = [step.run(backend) for step in steps]
    inputs = [step.tensors(backend) for step in steps]
    q, kv, cache = (tensor.clone() for tensor in inputs[0])
    metadata = builder.build(steps[0].input)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.forward(q, kv, cache, metadata)
    for step, values, wanted in zip(steps, inputs, expected, strict=True):
        builder.build(step.input)
        for target, value in zip((q, kv, cache), values, strict=True):
            target.copy_(value)
        graph.replay()
        assert torch.equal(out.cpu(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [64, 72, 80, 128])
def test_images_of_any_sizes_attend_as_in_float64(dim: int, dtype: torch.dtype) -> None:
    from mmserve.model_backend.platforms.cuda.ops import TritonOps

    heads, lengths = 3, (576, 1, 64, 64, 1000, 17)
    qkv = torch.randn(sum(lengths), 3 * heads * dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = TorchOps().encoder_attention(qkv.double(), heads, lengths)
    ops = TritonOps(torch.device("cuda", 0))
    found = ops.encoder_attention(qkv.cuda(), heads, lengths)
    assert ops._encoder(dim, dtype) is not None
    assert (found.cpu().double() - expected).abs().max() < TOLERANCES[dtype]
    alone = ops.encoder_attention(qkv[577 : 577 + 64].cuda(), heads, (64,))
    assert torch.equal(alone, found[577 : 577 + 64])
