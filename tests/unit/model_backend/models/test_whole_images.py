"""Attention over whole images gives the tokens of transformers, in chunks, behind prefix hits and after preemption."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from msgspec.structs import replace

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.checkpoints import IMAGE, make_text
from tests.fakes.embeddings import prompt_with_images, put_rows
from tests.fakes.engine import Driver, make_runner

ROWS, NUM_TOKENS = 25, 6
"""More rows than the window of the sliding layers, which is 21."""
IDS = [*range(5, 12), *[IMAGE] * ROWS, *range(40, 48), *[IMAGE] * ROWS, *range(50, 62)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("gemma3"), "gemma3_text")


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    return torch.randn(2, ROWS, 64, generator=torch.manual_seed(3))


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 18)
    yield made
    made.close()


def spec_of(directory: Path, *, whole_images: bool = True) -> ModelSpec:
    spec = load(directory)
    layers = tuple(replace(layer, whole_images=whole_images) for layer in spec.text.layers)
    return replace(spec, text=replace(spec.text, layers=layers))


@torch.inference_mode()
def expected(directory: Path, rows: torch.Tensor) -> list[int]:
    """Greedy tokens, each from all tokens before it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="sdpa"
    )
    ids, is_image = list(IDS), torch.tensor([token == IMAGE for token in IDS])
    image = torch.cumsum(is_image & ~is_image.roll(1), 0) * is_image
    for _ in range(NUM_TOKENS):
        embeddings = model.model.embed_tokens(torch.tensor(ids)[None])
        embeddings[0, : len(IDS)][is_image] = rows.flatten(0, 1)
        own = torch.arange(len(ids))
        spans = torch.cat([image, torch.zeros(len(ids) - len(IDS), dtype=torch.int64)])
        full = (own <= own[:, None]) | ((spans == spans[:, None]) & (spans > 0))
        sliding = full & (own > own[:, None] - model.config.sliding_window)
        masks = {"full_attention": full[None, None], "sliding_attention": sliding[None, None]}
        logits = model(inputs_embeds=embeddings, attention_mask=masks, use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(IDS) :]


def driver_of(runner: ModelRunner, chunk: int = 1000) -> Driver:
    return Driver(runner, chunk, whole_images=True)


@pytest.mark.parametrize("platform", ["cpu", "reference"])
def test_tokens_equal_those_of_transformers(directory: Path, rows: torch.Tensor, arena: Arena, platform: str) -> None:
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    make = partial(make_runner, platform=reference) if platform == "reference" else make_runner
    first, offset = put_rows(arena, rows[0], 0)
    second, _ = put_rows(arena, rows[1], offset)
    prompt, spans = prompt_with_images(IDS, [first, second], image_id=IMAGE, num_tokens=ROWS)
    tokens = expected(directory, rows)

    runner = make(directory, arena, model=spec_of(directory))
    assert isinstance(runner._executor, CompiledDecoder) == (platform == "cpu")
    for chunk in (1000, 30, 7, 1):
        driver = driver_of(runner, chunk)
        sequence = driver.add(0, prompt, spans=spans)
        driver.run(NUM_TOKENS)
        assert sequence.output == tokens, f"chunk {chunk}"

    driver = driver_of(runner)
    whole = driver.add(0, prompt, spans=spans)
    driver.run(NUM_TOKENS)
    for number, count in enumerate((1, 3, 4)):  # blocks of a hit: two end inside an image, the last does not
        shared, copied = tuple(whole.blocks[:count]), (whole.blocks[count], 9)
        driver.add(1 + number, prompt, spans=spans, shared=shared, copied=copied)
    resumed = driver.add(5, [*prompt, *tokens[:3]], spans=spans, num_prompt=len(prompt))
    hits = list(driver.running)
    driver.run(NUM_TOKENS)
    assert [each.output for each in (*hits, resumed)] == [tokens] * 4 + [tokens]

    causal = Driver(make(directory, arena, model=spec_of(directory, whole_images=False)))
    other = causal.add(0, prompt, spans=spans)
    causal.run(NUM_TOKENS)
    assert other.output != tokens


def test_a_chunk_that_ends_inside_an_image_fails(directory: Path, rows: torch.Tensor, arena: Arena) -> None:
    handle, _ = put_rows(arena, rows[0], 0)
    prompt, spans = prompt_with_images(IDS[:40], [handle], image_id=IMAGE, num_tokens=ROWS)
    driver = Driver(make_runner(directory, arena, model=spec_of(directory)), 20)
    driver.add(0, prompt, spans=spans)
    assert ["inside an image" in failure.message for failure in driver.step().failures] == [True]
