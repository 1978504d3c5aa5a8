"""On a GPU, tokens and image rows equal those of transformers in float32; half precision runs.

Skipped without a GPU, as in CI. tests/unit and tests/integration test the same code on a CPU.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from mmserve.checkpoint.load import load
from mmserve.ipc.arena import Arena
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.cuda.pinned import PinnedArena
from mmserve.model_backend.platforms.cuda.transfers import CudaTransfers
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.sampling import TorchSampling
from tests.fakes.models.checkpoints import IMAGE, VOCAB, make_llama, make_llava
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows, tiles
from tests.fakes.ranks.engine import Driver, make_runner
from tests.fakes.ranks.logprobs import check_logprobs

# The same properties (equality with transformers, rows read from the arena) are tested on a CPU in every run, by
# unit/model_backend and integration/model_backend.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device; on a CPU: integration/model_backend"
    ),
]


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20)
    yield made
    made.close()


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def test_after_a_refused_registration_kernels_run(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    device = torch.device("cuda", 0)
    first = PinnedArena(arena, device)
    assert not caplog.text
    second = PinnedArena(arena, device)  # it is registered already
    assert "could not be registered" in caplog.text
    assert torch.ones(3, device=device).sum().item() == 3
    del first, second
    caplog.clear()
    PinnedArena(arena, device)
    assert not caplog.text, "it was unregistered"


@pytest.mark.parametrize("chunk", [1000, 20])
def test_tokens_equal_transformers(tmp_path: Path, chunk: int) -> None:
    directory = make_llama(tmp_path)
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).cuda()
    driver = Driver(make_runner(directory, device="cuda", max_model_len=400), chunk=chunk)
    texts = prompts(1, 17, 70, 330)
    asking = SamplingParams(max_tokens=1000, temperature=0.0, logprobs=5)
    sequences = [driver.add(slot, prompt, sampling=asking) for slot, prompt in enumerate(texts)]
    driver.run(16)
    for sequence, prompt in zip(sequences, texts, strict=True):
        check_logprobs(directory, prompt, sequence.output, sequence.logprobs, tolerance=1e-3)
        ids = torch.tensor([prompt]).cuda()
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16, eos_token_id=-1
        )
        assert sequence.output[:16] == out[0, len(prompt) :].tolist()


def test_image_rows_and_spliced_tokens(tmp_path: Path, arena: Arena) -> None:
    directory = make_llava(tmp_path)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).cuda()
    pixels = torch.randn(2, 3, 28, 28, generator=torch.manual_seed(1))
    rows = torch.stack(load_tower(load(directory), platform_for("cuda", "float32"), lambda *_: None)(tiles(pixels)))
    with torch.inference_mode():
        features = torch.stack(list(model.get_image_features(pixels.cuda()).pooler_output))
    torch.testing.assert_close(rows, features, rtol=1e-3, atol=1e-3)
    ids = [9, *[IMAGE] * 16, 8, 7, *[IMAGE] * 16, 6]
    first, end = put_rows(arena, rows[0], 0)
    second, _ = put_rows(arena, rows[1], end)
    prompt, spans = prompt_with_images(ids, [first, second], image_id=IMAGE, num_tokens=16)
    driver = Driver(make_runner(directory, arena, device="cuda"), chunk=11)
    sequence = driver.add(0, prompt, spans=spans)
    driver.run(10)
    tokens = torch.tensor([ids]).cuda()
    out = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        pixel_values=pixels.cuda(),
        do_sample=False,
        max_new_tokens=10,
        eos_token_id=-1,
    )
    assert sequence.output == out[0, len(ids) :].tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_with_a_measured_cache(tmp_path: Path, dtype: str) -> None:
    runner = make_runner(make_llama(tmp_path), device="cuda", dtype=dtype, kv_tokens=None)
    runner.warm_up()
    assert runner.num_blocks == 2 * 8 * 16, "as much as all slots can use, twice"
    driver = Driver(runner, chunk=20)
    drawn = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, top_k=20, seed=3)
    sequences = [driver.add(slot, prompt, sampling=drawn) for slot, prompt in enumerate(prompts(50, 3))]
    driver.run(10)
    assert not driver.failures
    assert all(0 <= token < VOCAB for sequence in sequences for token in sequence.output)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (5, 100), (16, 152_064)])
def test_tokens_that_grammars_ban_are_those_of_the_cpu(rows: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    allowed = torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), generator=generator).int()
    order = torch.randperm(rows + 2, generator=generator)[:rows].tolist()
    expected = torch.randn(rows + 2, vocab, generator=generator)
    found = expected.cuda()
    TorchSampling().ban(expected, order, allowed)
    TorchSampling(CudaTransfers(found.device)).ban(found, order, allowed)
    assert torch.equal(found.cpu(), expected)
