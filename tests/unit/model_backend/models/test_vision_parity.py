"""Vision-language families write the greedy tokens of transformers in float32, however prompts are computed.

Pictures go through the families' image processors, towers and prompts. Qwen's and Gemma's families have own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle, MediaSpan
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower
from tests.fakes.models.checkpoints import in_shards, make_llava
from tests.fakes.models.idefics3 import make_idefics3, make_smolvlm
from tests.fakes.models.vision_checkpoints import IMAGE, make_vision
from tests.fakes.models.vision_model import VisionModel
from tests.fakes.pictures.embeddings import put_rows
from tests.fakes.pictures.media import png
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, Engine, Running, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

MAKERS: dict[str, Callable[[Path], Path]] = {
    "llava": make_llava,
    "idefics3": make_idefics3,
    "smolvlm": make_smolvlm,
    **{
        family: partial(make_vision, family=family)
        for family in ("internvl", "mistral3", "pixtral", "paddleocr_vl", "llava_next", "llava_onevision")
    },
}
SIZES = ((60, 50), (30, 61), (100, 37))
"""(width, height) of the pictures."""
NUM_TOKENS = 10
Prompt = Sequence[int | str]
"""Token ids, and for pictures their index in SIZES as a string."""
PROMPTS: tuple[Prompt, ...] = (
    (*range(23, 32),),
    (25, 26, 27, "0", 28, 29),
    ("1", "2", 50, 51, 52),
    (*range(60, 80), "0", 31, "1", 32, 33, "2", 34),
)
AROUND = {"paddleocr_vl": "<|IMAGE_START|>{}<|IMAGE_END|>"}
"""What the chat template writes around a picture, where pictures must not be neighbours."""


class Model(VisionModel):
    """With the pictures' rows in an arena."""

    def __init__(self, family: str, directory: Path, arena: Arena) -> None:
        super().__init__(family, directory, [png(seed, *size) for seed, size in enumerate(SIZES)])
        self.arena, self.handles, offset = arena, dict[tuple[int, int], Handle](), 0
        """By picture and number of pictures in its prompt."""
        self.places = [(picture, count) for picture in range(len(SIZES)) for count in range(1, len(SIZES) + 1)]
        self.rows = self.rows_of(self.spec)
        for place, rows in zip(self.places, self.rows, strict=True):
            assert len(rows) == self.expansion(*place).num_rows
            self.handles[place], offset = put_rows(arena, rows, offset)

    def rows_of(self, spec: ModelSpec) -> list[torch.Tensor]:
        """Of all pictures in prompts of each length, by the tower of a checkpoint."""
        return tower_of(spec)([self.views(*place) for place in self.places])

    @cached_property
    def transformers(self) -> Any:
        return transformers.AutoModelForImageTextToText.from_pretrained(self.directory, dtype=torch.float32)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """With one image token for each row."""
        around, ids = AROUND.get(self.family, "{}").format(self.placeholder), []
        for part in prompt:
            count = len(pictures_of(prompt))
            ids += [part] if isinstance(part, int) else self.ids(around, [int(part)], count)
        return ids

    def add(self, driver: Driver, slot: int, prompt: Prompt, **settings: Any) -> Running:
        ids, spans, start = self.prompt_ids(prompt), [], 0
        for media_index, picture in enumerate(pictures_of(prompt)):
            count, row = len(pictures_of(prompt)), 0
            handle = self.handles[picture, count]
            for run in self.expansion(picture, count).runs:
                start = ids.index(IMAGE, start)
                first = FIRST_VIRTUAL_TOKEN + handle.offset + row
                ids[start : start + run.rows] = range(first, first + run.rows)
                spans.append(
                    MediaSpan(
                        start=start,
                        num_tokens=run.rows,
                        item_id=picture,
                        data=None,
                        embed=handle,
                        media_index=media_index,
                        first_row=row,
                        grid=run.grid,
                    )
                )
                row += run.rows
        return driver.add(slot, ids, spans=tuple(spans), **settings)

    def expected(self, prompt: Prompt) -> list[int]:
        """Of transformers."""
        inputs = self.inputs(self.prompt_ids(prompt), pictures_of(prompt))
        out = self.transformers.generate(**inputs, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1)
        return out[0, inputs["input_ids"].shape[1] :].tolist()  # type: ignore[no-any-return]

    def outputs(self, engine: Engine, chunk: int) -> list[list[int]]:
        driver = Driver(engine, chunk)
        sequences = [self.add(driver, slot, prompt) for slot, prompt in enumerate(PROMPTS)]
        driver.run(NUM_TOKENS)
        return [sequence.output[:NUM_TOKENS] for sequence in sequences]


def tower_of(spec: ModelSpec) -> Tower:
    return load_tower(spec, platform_for("cpu", "float32"), lambda done, total, unit: None)


def pictures_of(prompt: Prompt) -> list[int]:
    return [int(part) for part in prompt if isinstance(part, str)]


@pytest.fixture(scope="module", params=MAKERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    arena = Arena.create(1 << 20)
    directory = tmp_path_factory.mktemp(request.param)
    yield Model(request.param, MAKERS[request.param](directory), arena)
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


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("internvl", "qwen2"),
        ("internvl", "llama"),
        ("mistral3", "ministral3"),
        ("mistral3", "llama"),
        ("llava_next", "llama"),
        ("llava_next", "qwen2"),
    ],
)
def test_other_language_models(tmp_path: Path, family: str, text: str) -> None:
    with closing(Arena.create(1 << 20)) as arena:
        model = Model(family, make_vision(tmp_path, family, text=text), arena)
        assert model.outputs(make_runner(tmp_path, arena), 20) == [model.expected(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("ranks_per_kv_head", [0.5, 1, 2])
def test_ranks(model: Model, expected: list[list[int]], ranks_per_kv_head: float) -> None:
    """Two, four and eight; half as many for PaddleOCR-VL, which has two KV heads."""
    size = int(ranks_per_kv_head * model.spec.text.num_kv_heads)
    ranks = RanksInThreads(model.directory, model.arena, size=size)
    try:
        assert model.outputs(ranks, 20) == expected
    finally:
        ranks.close()


def test_sharded_checkpoint(model: Model, expected: list[list[int]], tmp_path: Path) -> None:
    sharded = in_shards(model.directory, tmp_path)
    assert all(map(torch.equal, model.rows_of(load(sharded)), model.rows))
    assert model.outputs(make_runner(sharded, model.arena), 1000) == expected


@pytest.mark.parametrize("num_copied", [3, 7], ids=["before the picture", "inside the picture"])
def test_prefix_hit_and_preemption(model: Model, expected: list[list[int]], num_copied: int) -> None:
    driver, prompt = Driver(make_runner(model.directory, model.arena), chunk=30), PROMPTS[3]
    first = model.add(driver, 0, prompt)
    while len(first.output) < 5:
        driver.step()
    other = (*prompt[:21], 110, 111, "1", "2")
    assert 20 < BLOCK_TOKENS + 7 < 20 + model.expansion(0, 3).num_rows
    hit = model.add(driver, 1, other, shared=tuple(first.blocks[:1]), copied=(first.blocks[1], num_copied))
    driver.step()
    driver.drop(first)
    driver.step()
    resumed = driver.add(2, first.tokens, num_prompt=first.num_prompt, spans=first.spans)
    driver.run(NUM_TOKENS)
    assert [resumed.output[:NUM_TOKENS], hit.output[:NUM_TOKENS]] == [expected[3], model.expected(other)]
