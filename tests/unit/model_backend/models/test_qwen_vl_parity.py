"""Qwen's vision-language models write the greedy tokens of transformers in float32, however prompts are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec, Rope
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle, MediaSpan
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower, ViewTensors
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.models.checkpoints import in_shards
from tests.fakes.models.qwen_vl import CONFIGS, IMAGE, VISION_END, VISION_START, make_qwen_vl, random_pictures
from tests.fakes.pictures.embeddings import put_rows
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, Engine, Running, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

GRIDS = ((1, 6, 10), (1, 2, 2), (1, 4, 14))
NUM_TOKENS = 16
Prompt = Sequence[int | str]
"""Token ids, and for pictures their index in GRIDS as a string."""
PROMPTS: tuple[Prompt, ...] = (
    (*range(23, 32),),
    (25, 26, 27, "0", 28, 29),
    ("1", "2", 50, 51, 52),
    (*range(60, 80), "0", 31, "1", 32, 33, "2", 34),
)
PREFIX: Prompt = PROMPTS[3][:21]
"""Its first picture has rows in the second and third block."""


@dataclass
class Model:
    """A checkpoint, and its pictures' rows in an arena."""

    directory: Path
    views: list[ViewTensors]
    handles: list[Handle]
    arena: Arena

    @cached_property
    def transformers(self) -> Any:
        return transformers.AutoModelForImageTextToText.from_pretrained(self.directory, dtype=torch.float32)

    def ids(self, prompt: Prompt) -> list[int]:
        """With one image token for each row."""
        ids = []
        for part in prompt:
            rows = len(self.views[int(part)].values) // 4 if isinstance(part, str) else 0
            ids += [VISION_START, *[IMAGE] * rows, VISION_END] if isinstance(part, str) else [part]
        return ids

    def add(self, driver: Driver, slot: int, prompt: Prompt, **settings: Any) -> Running:
        ids, spans, start = self.ids(prompt), [], 0
        for media_index, picture in enumerate(int(part) for part in prompt if isinstance(part, str)):
            handle, (_, h, w) = self.handles[picture], GRIDS[picture]
            rows, start = h * w // 4, ids.index(IMAGE, start)
            ids[start : start + rows] = range(first := FIRST_VIRTUAL_TOKEN + handle.offset, first + rows)
            spans.append(
                MediaSpan(
                    start=start,
                    num_tokens=rows,
                    item_id=picture,
                    data=None,
                    embed=handle,
                    media_index=media_index,
                    grid=(1, h // 2, w // 2),
                )
            )
        return driver.add(slot, ids, spans=tuple(spans), **settings)

    def outputs(self, engine: Engine, chunk: int) -> list[list[int]]:
        driver = Driver(engine, chunk)
        sequences = [self.add(driver, slot, prompt) for slot, prompt in enumerate(PROMPTS)]
        driver.run(NUM_TOKENS)
        return [sequence.output[:NUM_TOKENS] for sequence in sequences]

    def expected(self, prompt: Prompt) -> list[int]:
        """Of transformers."""
        ids = torch.tensor([self.ids(prompt)])
        views = [self.views[int(part)] for part in prompt if isinstance(part, str)]
        images = {}
        if views:
            grids = torch.cat([view.grids for view in views]).long()
            images = {"pixel_values": torch.cat([view.values for view in views]), "image_grid_thw": grids}
        out = self.transformers.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == IMAGE).int(),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=-1,
            **images,
        )
        return out[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]


def tower_of(directory: Path) -> Tower:
    return load_tower(load(directory), platform_for("cpu", "float32"), lambda done, total, unit: None)


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    directory = make_qwen_vl(tmp_path_factory.mktemp(request.param), request.param)
    views = random_pictures(load(directory), GRIDS)
    arena = Arena.create(1 << 20)
    handles, offset = [], 0
    for rows in tower_of(directory)(views):
        handle, offset = put_rows(arena, rows, offset)
        handles.append(handle)
    yield Model(directory, views, handles, arena)
    arena.close()


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    return [model.expected(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("chunk", [1000, 7, 1])
def test_prompts_in_chunks(model: Model, expected: list[list[int]], chunk: int) -> None:
    assert model.outputs(make_runner(model.directory, model.arena), chunk) == expected


def test_torch_alone(model: Model, expected: list[list[int]]) -> None:
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    assert model.outputs(make_runner(model.directory, model.arena, reference), 20) == expected


@pytest.mark.parametrize("size", [2, 4])
def test_ranks(model: Model, expected: list[list[int]], size: int) -> None:
    """Of four, two have the same KV head."""
    ranks = RanksInThreads(model.directory, model.arena, size=size)
    try:
        assert model.outputs(ranks, 20) == expected
    finally:
        ranks.close()


def test_sharded_checkpoint(model: Model, expected: list[list[int]], tmp_path: Path) -> None:
    sharded = in_shards(model.directory, tmp_path)
    assert all(map(torch.equal, tower_of(sharded)(model.views), tower_of(model.directory)(model.views)))
    assert model.outputs(make_runner(sharded, model.arena), 1000) == expected


@pytest.mark.parametrize("num_copied", [3, 12], ids=["before the picture's rows", "inside the picture"])
def test_prefix_hit_and_preemption(model: Model, expected: list[list[int]], num_copied: int) -> None:
    driver = Driver(make_runner(model.directory, model.arena), chunk=30)
    first = model.add(driver, 0, PROMPTS[3])
    while len(first.output) < 5:
        driver.step()
    other = (*PREFIX, 110, 111, "2", 112)
    copied = (first.blocks[1], num_copied)
    assert BLOCK_TOKENS + num_copied < len(model.ids(PREFIX))
    hit = model.add(driver, 1, other, shared=tuple(first.blocks[:1]), copied=copied)
    driver.step()
    driver.drop(first)
    driver.step()
    resumed = driver.add(2, first.tokens, num_prompt=first.num_prompt, spans=first.spans)
    driver.run(NUM_TOKENS)
    assert [resumed.output[:NUM_TOKENS], hit.output[:NUM_TOKENS]] == [expected[3], model.expected(other)]


def with_rope(model: ModelSpec, **changes: Any) -> ModelSpec:
    layers = [replace(layer, rope=replace(layer.rope or Rope(), **changes)) for layer in model.text.layers]
    return replace(model, text=replace(model.text, layers=tuple(layers)))


def test_the_prompts_show_a_wrong_option(
    model: Model, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests above could not see it either."""
    spec = load(model.directory)
    rope = spec.text.layers[0].rope
    assert rope is not None
    assert spec.vision is not None
    wrong = [with_rope(spec, sections=(sum(rope.sections), 0, 0)), with_rope(spec, interleaved=not rope.interleaved)]
    runners = [make_runner(model.directory, model.arena, model=each) for each in wrong]
    if spec.vision.streams > 1:
        runners.append(make_runner(model.directory, model.arena))
        monkeypatch.setattr(runners[-1]._image_writer, "scatter", without_further_streams(runners[-1]))
    for runner in runners:
        found = model.outputs(runner, 1000)
        assert found[0] == expected[0]
        assert found != expected


def without_further_streams(runner: ModelRunner) -> Callable[..., Any]:
    scatter = runner._image_writer.scatter
    return lambda *arguments: (scatter(*arguments)[0], None)


def test_experts_as_published(tmp_path: Path) -> None:
    """Stacked as [experts, in, out], and the names that transformers 5 and the hub share."""
    directory = make_qwen_vl(tmp_path, "qwen3_vl_moe")
    prompt, tokens = list(range(20, 40)), []
    for _ in range(2):
        driver = Driver(make_runner(directory))
        sequence = driver.add(0, prompt)
        driver.run(NUM_TOKENS)
        tokens.append(sequence.output)
        stored = load_file(directory / "model.safetensors")
        transposed = {
            name: tensor.mT.contiguous() if ".experts." in name else tensor for name, tensor in stored.items()
        }
        save_file(transposed, directory / "model.safetensors", metadata={"format": "pt"})
    assert tokens[0] == tokens[1]
