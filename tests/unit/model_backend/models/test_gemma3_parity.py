"""Gemma 3 with pictures writes the greedy tokens of transformers, though attention in a picture reads all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from msgspec.structs import replace

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import LayerSpec, ModelSpec
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower
from tests.fakes.models.checkpoints import in_shards
from tests.fakes.models.vision_checkpoints import IMAGE, make_vision
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows, tiles
from tests.fakes.ranks.engine import GREEDY, Driver, Engine, Running, make_runner
from tests.fakes.ranks.ranks_in_threads import RanksInThreads

ROWS, WINDOW, NUM_TOKENS = 16, 8, 8
"""Rows of a picture. The window of most layers is smaller."""
START, END = IMAGE + 1, IMAGE + 2
Prompt = Sequence[int | str]
"""Token ids, and for pictures their index as a string."""
PROMPTS: tuple[Prompt, ...] = (
    (*range(23, 45),),
    ("1",),
    (25, 26, 27, "0", 28, 29),
    (30, "1", "1", 31, 32, "0", *range(50, 62)),
)


class Model(NamedTuple):
    """A checkpoint, and the rows of its pictures in an arena."""

    directory: Path
    pixels: torch.Tensor
    handles: list[Handle]
    arena: Arena

    def add(self, driver: Driver, slot: int, prompt: Prompt, **settings: Any) -> Running:
        handles = [self.handles[int(part)] for part in prompt if isinstance(part, str)]
        ids, spans = prompt_with_images(ids_of(prompt), handles, image_id=IMAGE, num_tokens=ROWS)
        return driver.add(slot, ids, spans=spans, **settings)

    def outputs(self, engine: Engine, chunk: int) -> list[list[int]]:
        driver = Driver(engine, chunk, whole_images=True)
        sequences = [self.add(driver, slot, prompt) for slot, prompt in enumerate(PROMPTS)]
        driver.run(NUM_TOKENS)
        return [sequence.output[:NUM_TOKENS] for sequence in sequences]


def ids_of(prompt: Prompt) -> list[int]:
    return [token for part in prompt for token in ([START, *[IMAGE] * ROWS, END] if isinstance(part, str) else [part])]


def tower_of(directory: Path) -> Tower:
    return load_tower(load(directory), platform_for("cpu", "float32"), lambda *_: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    directory = make_vision(tmp_path_factory.mktemp("gemma3"), "gemma3", mm_tokens_per_image=ROWS)
    pixels = torch.randn(2, 3, 56, 56, generator=torch.manual_seed(1))
    arena = Arena.create(1 << 18)
    handles, offset = [], 0
    for rows in tower_of(directory)(tiles(pixels)):
        assert len(rows) == ROWS
        handle, offset = put_rows(arena, rows, offset)
        handles.append(handle)
    yield Model(directory, pixels, handles, arena)
    arena.close()


@pytest.fixture(scope="module")
def expected(model: Model) -> list[list[int]]:
    theirs: Any = transformers.AutoModelForImageTextToText.from_pretrained(model.directory, dtype=torch.float32)
    assert theirs.config.text_config.sliding_window == WINDOW
    outputs = []
    for prompt in PROMPTS:
        ids = torch.tensor([ids_of(prompt)])
        pictures = [int(part) for part in prompt if isinstance(part, str)]
        found = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            token_type_ids=(ids == IMAGE).int(),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=-1,
            **({"pixel_values": model.pixels[pictures]} if pictures else {}),
        )
        outputs.append(found[0, ids.shape[1] :].tolist())
    return outputs


@pytest.mark.parametrize("chunk", [1000, 20, 7, 1])
def test_prompts_in_chunks(model: Model, expected: list[list[int]], chunk: int) -> None:
    runner = make_runner(model.directory, model.arena)
    assert isinstance(runner._executor, CompiledDecoder)
    assert model.outputs(runner, chunk) == expected


def test_torch_alone(model: Model, expected: list[list[int]]) -> None:
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    assert model.outputs(make_runner(model.directory, model.arena, reference), 20) == expected


@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks(model: Model, expected: list[list[int]], size: int) -> None:
    """Of eight, two have the same KV head."""
    ranks = RanksInThreads(model.directory, model.arena, size=size)
    try:
        assert model.outputs(ranks, 20) == expected
    finally:
        ranks.close()


def test_sharded_checkpoint(model: Model, expected: list[list[int]], tmp_path: Path) -> None:
    sharded, pictures = in_shards(model.directory, tmp_path), tiles(model.pixels)
    assert all(map(torch.equal, tower_of(sharded)(pictures), tower_of(model.directory)(pictures)))
    assert model.outputs(make_runner(sharded, model.arena), 1000) == expected


def test_prefix_hits_inside_a_picture_and_preemption(model: Model, expected: list[list[int]]) -> None:
    """The log-probabilities show rows and masks of the rest of a picture that are too little wrong for other tokens."""
    driver = Driver(make_runner(model.directory, model.arena), whole_images=True)
    sampling = replace(GREEDY, logprobs=5)
    first, short = (model.add(driver, slot, PROMPTS[prompt], sampling=sampling) for slot, prompt in ((0, 3), (5, 2)))
    while len(first.output) < 5:
        driver.step()
    blocks = first.blocks
    hits = [
        model.add(driver, 1, PROMPTS[3], sampling=sampling, copied=(blocks[0], 9)),
        model.add(driver, 2, PROMPTS[3], sampling=sampling, shared=(blocks[0],), copied=(blocks[1], 1)),
        model.add(driver, 3, PROMPTS[3], sampling=sampling, shared=tuple(blocks[:2]), copied=(blocks[2], 12)),
        model.add(driver, 6, PROMPTS[2], sampling=sampling, copied=(short.blocks[0], 9)),
    ]
    assert all(any(span.start < hit.computed < span.start + ROWS for span in hit.spans) for hit in hits)
    driver.step()
    driver.drop(first)
    driver.step()
    resumed = driver.add(4, first.tokens, num_prompt=first.num_prompt, spans=first.spans)
    driver.run(NUM_TOKENS)
    found = [sequence.output[:NUM_TOKENS] for sequence in (*hits, resumed)]
    assert found == [expected[3]] * 3 + [expected[2], expected[3]]
    for hit, whole in zip(hits, (first, first, first, short), strict=True):
        torch.testing.assert_close(torch.tensor(hit.logprobs[:5]), torch.tensor(whole.logprobs[:5]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("change", [{"whole_images": False}, {"window": None}, {"window": WINDOW + 1}], ids=str)
def test_the_prompts_show_a_wrong_mask(model: Model, expected: list[list[int]], change: dict[str, Any]) -> None:
    wrong = with_layers(load(model.directory), change)
    assert model.outputs(make_runner(model.directory, model.arena, model=wrong), 1000) != expected


def with_layers(model: ModelSpec, change: dict[str, Any]) -> ModelSpec:
    def changed(layer: LayerSpec) -> LayerSpec:
        return layer if "window" in change and layer.window is None else replace(layer, **change)

    return replace(model, text=replace(model.text, layers=tuple(map(changed, model.text.layers))))


def test_a_chunk_that_ends_inside_a_picture_fails(model: Model) -> None:
    driver = Driver(make_runner(model.directory, model.arena), 10)
    model.add(driver, 0, PROMPTS[2])
    assert ["inside an image" in failure.message for failure in driver.step().failures] == [True]
