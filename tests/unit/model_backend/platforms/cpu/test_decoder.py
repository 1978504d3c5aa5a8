"""Every text family whose heads the kernels take is computed in one call of them, and gives the bits of its layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.interface import ForwardExecutor
from tests.fakes.models.checkpoints import TEXT_FAMILIES, make_text
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_attention import BLOCK, step_of

pytestmark = needs_compiler
LIMITS = StepLimits(max_tokens=200, max_seqs=2, max_blocks=16, block_tokens=BLOCK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", *(name for name in TEXT_FAMILIES if name != "qwen3_moe")])
@torch.inference_mode()
def test_one_call_gives_the_bits_of_the_layers(
    tmp_path: Path, family: str, kv_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    spec = load(make_text(tmp_path, family, hidden_size=128))
    spec = replace(spec, text=for_context(spec.text, 256))
    platform = CpuPlatform(dtype)
    attention = platform.attention(AttentionSpec.of(spec.text, TpGroup()), kv_dtype)
    assert isinstance(attention, PagedCpuAttention)
    model = load_decoder(spec, platform, attention, TpGroup(), "none", lambda done, total, unit: None)
    compiled = platform.executor(model, LIMITS)
    assert isinstance(compiled, CompiledDecoder)
    step = step_of([(40, 1), (0, 180)])  # so many rows are computed block by block
    metadata = attention.builder(LIMITS).build(step)
    positions = torch.tensor([[40, *range(180)]])
    shape = attention.kv_shape(int(step.block_tables.max()) + 1, BLOCK)

    def run(executor: ForwardExecutor | DecoderModel, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = random(spec.text.num_layers, *shape, seed=1).to(kv_dtype)
        return executor.forward(random(181, 128), positions, cache, metadata, wanted).clone(), cache

    for rows in ([0, 30, 180], []):  # of a chunk that does not end its prompt no row is wanted
        wanted = torch.tensor(rows, dtype=torch.int64)
        (found, found_cache), (expected, expected_cache) = run(compiled, wanted), run(model, wanted)
        assert torch.equal(found, expected)
        assert torch.equal(found_cache, expected_cache)
