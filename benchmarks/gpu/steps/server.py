"""Step 6: the whole server over HTTP: text alone, pictures, both; beside transformers on the same device."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped
from benchmarks.gpu.models.shapes import SHAPES, SMALL

_TEXT_MODEL, _PICTURE_MODEL = "Qwen2.5-1.5B", "Qwen2.5-VL-7B"


class _Sizes(NamedTuple):
    clients: tuple[int, int]
    """Of text."""
    words: int
    tokens: int
    """Of an answer."""
    pictures: int
    """Clients that send one each."""


_FULL = _Sizes((64, 256), 1000, 256, 128)
_SMALL = _Sizes((2, 3), 12, 4, 2)
_PICTURE_WORDS, _PICTURE_TOKENS, _POOL = 6, 16, 4
FLAGS = {
    "cuda": ("--device", "cuda", "--dtype", "bfloat16", "--max-num-seqs", "256", "--max-model-len", "4096"),
    "cpu": ("--device", "cpu", "--kv-cache-gb", "0.1", "--mm-cache-gb", "0.1", "--max-model-len", "2048"),
}
_STREAMS = 64


def run(checks: Checks, settings: Settings) -> None:
    checks.run("imports", lambda: needs_all(settings))
    if not checks.figures("imports"):
        return
    sizes = _SMALL if settings.small else _FULL
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with _served(checks, settings, folder, _TEXT_MODEL) as target:
            for clients in sizes.clients:
                checks.run(f"text, {clients} clients", partial(_load, target, _text(sizes, clients)))
        checks.run("text, transformers", partial(_static, settings, folder / _TEXT_MODEL, sizes))
        with _served(checks, settings, folder, _PICTURE_MODEL) as target:
            for name, pool in (("different", 0), ("repeated", _POOL)):
                checks.run(f"pictures, {name}", partial(_load, target, _pictures(sizes, name, pool)))
            checks.run("text beside pictures", partial(_beside, target, sizes))


def needs_all(settings: Settings) -> Figures:
    """Skipped with the name of the package that is missing: the server's own are in children."""
    import importlib

    from benchmarks.gpu.rates.device import device_of
    from benchmarks.gpu.steps.environment import NEEDED

    for names in NEEDED.values():
        for name in names:
            importlib.import_module(name)
    return {"device": str(device_of(settings))}


@contextlib.contextmanager
def _served(checks: Checks, settings: Settings, folder: Path, model: str) -> Iterator[Callable[[], Any]]:
    """A server with random weights. Yields what gives it, starting it first if this process has not yet."""
    with contextlib.ExitStack() as stack:
        server = _Server(settings, folder / model, stack)
        checks.run(f"{model}, start", server.start)
        yield server.target


class _Server:
    """Started at most once: a start that failed is not tried again."""

    def __init__(self, settings: Settings, path: Path, stack: contextlib.ExitStack) -> None:
        self._settings, self._path, self._stack = settings, path, stack
        self._tried, self._target = False, None

    def start(self) -> Figures:
        from benchmarks.gpu.models.checkpoint import write
        from benchmarks.gpu.models.loading import load_decoder_s
        from benchmarks.load.server import serve

        self._tried = True
        times = [time.perf_counter()]
        write(self._path, (SMALL if self._settings.small else SHAPES)[self._path.name], self._settings)
        _free_device(self._settings)
        times.append(time.perf_counter())
        load_s, nbytes = load_decoder_s(self._path, self._settings)
        times.append(time.perf_counter())
        started = serve(*FLAGS[self._settings.device], model=str(self._path))
        self._target = self._stack.enter_context(started)
        times.append(time.perf_counter())
        return {
            "s of writing weights": times[1] - times[0],
            "s of loading the decoder": load_s,
            "bytes/s of loading": nbytes / load_s,
            "s to ready": times[3] - times[2],
        }

    def target(self) -> Any:
        """Raises Skipped if the server did not start."""
        if not self._tried:
            self.start()
        if self._target is None:
            raise Skipped(f"needs the server of {self._path.name}")
        return self._target


def _free_device(settings: Settings) -> None:
    """The server's processes need what this one has cached."""
    import torch

    if settings.device == "cuda":
        torch.cuda.empty_cache()


def _text(sizes: _Sizes, clients: int) -> Any:
    from benchmarks.load.workload import Workload

    return Workload("text", clients, requests=clients, prompt_words=sizes.words, output_tokens=sizes.tokens)


def _pictures(sizes: _Sizes, name: str, pool: int) -> Any:
    from benchmarks.load.workload import Workload

    return Workload(
        f"pictures, {name}",
        sizes.pictures,
        requests=sizes.pictures,
        prompt_words=_PICTURE_WORDS,
        output_tokens=_PICTURE_TOKENS,
        images=1,
        image_pool=pool,
    )


def _load(target: Callable[[], Any], load: Any) -> Figures:
    """One run of the load, after a short one."""
    from dataclasses import replace

    from benchmarks.load.measure import RequestOptions, once

    once(target(), replace(load, name=f"{load.name}, first", concurrency=2, requests=2), -1, RequestOptions())
    return _without_errors(once(target(), load, 0, RequestOptions()))


def _beside(target: Callable[[], Any], sizes: _Sizes) -> Figures:
    """Inter-token latency of text while clients send picture after picture."""
    from benchmarks.load.measure import RequestOptions, mixed, once
    from benchmarks.load.named import Mixed

    text = _text(sizes, min(32, sizes.clients[0]))
    alone = once(target(), text, 1, RequestOptions())
    both = mixed(target(), Mixed("beside", text, _pictures(sizes, "flood", 0)), 2, RequestOptions())
    return _without_errors(both) | {"itl_p99_ms_alone": alone["itl_p99_ms"]}


def _without_errors(figures: dict[str, float]) -> dict[str, float]:
    assert not figures["errors"], f"{figures['errors']:.0f} requests failed"
    return figures


def _static(settings: Settings, path: Path, sizes: _Sizes) -> Figures:
    """``generate`` of transformers with one batch of all prompts, and its continuous batching."""
    import torch
    import transformers

    from benchmarks.gpu.rates.device import device_of

    if not (path / "config.json").exists():
        raise Skipped("needs the checkpoint")
    device, streams = device_of(settings), 2 if settings.small else _STREAMS
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(device)
    ids = torch.randint(40, 40_000, (streams, sizes.words), device=device)
    options = {"do_sample": False, "max_new_tokens": sizes.tokens, "min_new_tokens": sizes.tokens}
    started_s = time.perf_counter()
    network.generate(ids, attention_mask=torch.ones_like(ids), **options)
    seconds = time.perf_counter() - started_s
    wanted = transformers.GenerationConfig(**options, eos_token_id=-1)
    return {
        "tokens/s of generate": streams * sizes.tokens / seconds,
        "tokens/s of continuous batching": _continuous(network, ids.tolist(), wanted, small=settings.small),
    }


def _continuous(network: Any, prompts: list[list[int]], wanted: Any, *, small: bool) -> float:
    """Tokens/s from the first request's start on: graphs are captured before. A CPU gets a small cache."""
    import transformers

    more = {}
    if small:
        more["continuous_batching_config"] = transformers.ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    answers = network.generate_batch(inputs=prompts, generation_config=wanted, **more).values()
    failed = [answer.error for answer in answers if answer.error is not None]
    assert not failed, f"{len(failed)} requests failed: {failed[0]}"
    lengths = {len(answer.generated_tokens) for answer in answers}
    assert lengths == {wanted.max_new_tokens}, f"answers of {sorted(lengths)} tokens"
    starts, ends = zip(*(answer.lifespan for answer in answers), strict=True)
    assert min(starts) > 0, "transformers has not noted when it began"
    return float(len(prompts) * wanted.max_new_tokens / (max(ends) - min(starts)))
