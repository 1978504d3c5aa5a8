"""What a run sends and when, from a seed."""

from __future__ import annotations

import io
import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmserve.cli.bench.plan import Load, arrivals, bodies, jpeg, read_pictures, read_prompts
from mmserve.runtime.errors import StartupError


def _content(body: dict[str, Any]) -> list[Any]:
    content = body["messages"][0]["content"]
    return [part.get("text") or part["image_url"]["url"] for part in content]


def test_the_same_seed_gives_the_same_bodies() -> None:
    load = Load(requests=3, words=5, images=1, image_size=(32, 16), extra={"ignore_eos": True})
    assert bodies(load, "m", 7) == bodies(load, "m", 7)
    assert _content(bodies(load, "m", 7)[0]) != _content(bodies(load, "m", 8)[0])
    body = bodies(load, "m", 7)[0]
    assert (body["model"], body["max_tokens"], body["stream"], body["ignore_eos"]) == ("m", 64, True, True)
    assert len(_content(body)[1].split()) == 5


def test_pictures_are_new_or_from_a_pool_or_the_callers() -> None:
    load = {"requests": 20, "images": 2, "image_size": (32, 16)}
    assert len({url for body in bodies(Load(**load), "m", 1) for url in _content(body)[:2]}) == 40
    assert len({url for body in bodies(Load(**load, image_pool=3), "m", 1) for url in _content(body)[:2]}) == 3
    own = bodies(Load(**load, pictures=("a", "b")), "m", 1)
    assert {url for body in own for url in _content(body)[:2]} == {"a", "b"}


def test_own_prompts_are_taken_in_turn() -> None:
    assert [_content(body)[0] for body in bodies(Load(requests=3, prompts=("x", "y")), "m", 1)] == ["x", "y", "x"]


def test_random_pictures_have_their_size() -> None:
    with Image.open(io.BytesIO(jpeg(random.Random(1), (64, 48)))) as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_burstiness(burstiness: float) -> None:
    times = arrivals(20_000, 10, burstiness, 1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 0
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    # The coefficient of variation of a gamma distribution is one over the root of its shape.
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    assert times == arrivals(20_000, 10, burstiness, 1)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrivals(3, math.inf, 1, 1) == [0, 0, 0]


def test_prompts_are_texts_or_json(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("one\n\ntwo\n")
    (tmp_path / "json").write_text(json.dumps({"prompt": "one"}) + "\n")
    assert read_prompts(tmp_path / "texts") == ["one", "two"]
    assert read_prompts(tmp_path / "json") == ["one"]
    for name, content in (("empty", "\n"), ("other", '{"text": "x"}')):
        (tmp_path / name).write_text(content)
        with pytest.raises(StartupError, match=name):
            read_prompts(tmp_path / name)
    with pytest.raises(StartupError, match="missing"):
        read_prompts(tmp_path / "missing")


def test_pictures_of_a_directory_are_read_in_order(tmp_path: Path) -> None:
    for name, size in (("b.png", (3, 3)), ("a.jpg", (5, 5))):
        Image.new("RGB", size).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    assert [url.partition(";")[0] for url in read_pictures(tmp_path)] == ["data:image/jpeg", "data:image/png"]
    (tmp_path / "c.png").write_text("x")
    with pytest.raises(StartupError, match=r"c\.png"):
        read_pictures(tmp_path)
    with pytest.raises(StartupError, match="no pictures"):
        read_pictures(_made(tmp_path / "empty"))


def _made(path: Path) -> Path:
    path.mkdir()
    return path
