"""Step 3: the device's greedy tokens are those of torch on the CPU, for every family and for the packaged model.

In float32 they must be equal, up to the first for which two tokens are equally likely. In bfloat16, and with drawn
tokens, the part of equal ones is reported.
"""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.checks import Checks, Figures, Settings
from benchmarks.gpu.rates.device import device_of, exact_float32

_NUM_TOKENS, _ANSWER_TOKENS = 12, 24
_CHUNK = 20
_NEAR_TIE = 1e-4
"""Two tokens whose logprobs differ by no more: which of them is greater depends on the order of sums in float32."""
_SIZES = ((60, 50), (30, 61))
"""(width, height) of the pictures of a tiny checkpoint."""
_QUESTIONS = 14
_AHEAD: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "top_k": 50, "top_p": 0.9, "logprobs": 2},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
}
"""Kinds of sequences: one needs the tokens before on the host."""
_CAPTURED = ("llama", "qwen2_5_vl", "qwen3_moe", "qwen3_vl_moe")
"""Families whose steps with graphs are compared with those without: one axis and three, MLPs and experts."""
_FIRST_ID, _LAST_ID = 40, 250
"""Text of tiny checkpoints: ids that are no special tokens."""


def run(checks: Checks, settings: Settings) -> None:
    checks.run("imports", lambda: _imports(settings), by_all=True)
    if not (found := checks.figures("imports")):
        return
    exact_float32()
    families = settings.only_families or tuple(found["families"])
    with tempfile.TemporaryDirectory() as made:
        for family in families:
            checks.run(f"float32, {family}", partial(_family, Path(made), family, settings))
        for kind in _AHEAD:
            checks.run(f"launched ahead, {kind}", partial(_ahead, Path(made), kind, settings))
        for family in (each for each in _CAPTURED if each in families):
            checks.run(f"graphs, {family}", partial(_graphs, Path(made), family, settings))
        checks.run("float32, packaged model", lambda: _packaged(settings, "float32"))
        if not settings.small:
            checks.run("bfloat16, packaged model", lambda: _packaged(settings, "bfloat16"))


def _imports(settings: Settings) -> Figures:
    """Skipped with the name of the package that is missing."""
    import benchmarks.gpu.models.greedy
    from benchmarks.checkpoints.tiny import TINY

    device_of(settings)
    assert benchmarks.gpu.models.greedy
    return {"families": sorted(TINY)}


def _family(folder: Path, family: str, settings: Settings) -> Figures:
    from benchmarks.checkpoints.tiny import TINY
    from mmserve.checkpoint.load import load
    from mmserve.messages.sampling import SamplingParams

    directory = TINY[family](folder / family)
    spec, rng = load(directory), random.Random(settings.seed)
    prompts = [_text_prompt(rng, length) for length in (1, 17, 70)]
    if spec.vision is not None:
        prompts.append(_picture_prompt(rng, spec))
    greedy = SamplingParams(max_tokens=1000, temperature=0.0, logprobs=1)
    on = partial(_answers_on, directory, prompts, _NUM_TOKENS)
    expected, found = on("reference", "float32", greedy), on(settings.device, "float32", greedy)
    figures = {
        "prompts": len(prompts),
        "part of tokens equal": _equal_part(expected, found),
        "largest difference of logprobs": _largest_difference(expected, found),
    }
    if not settings.small:
        drawn = SamplingParams(max_tokens=1000, temperature=0.9, top_p=0.95, seed=settings.seed)
        pairs = [(on("reference", "float32", drawn), on(settings.device, "float32", drawn))]
        figures["part of drawn tokens equal"] = _equal_part(*pairs[0])
        figures["part of bfloat16 tokens equal"] = _equal_part(expected, on(settings.device, "bfloat16", greedy))
    _assert_equal(expected, found)
    return figures


def _ahead(folder: Path, kind: str, settings: Settings) -> Figures:
    """Plans launched before the results of earlier ones give the tokens of plans one after the other."""
    from benchmarks.checkpoints.tiny import TINY
    from mmserve.messages.sampling import SamplingParams
    from mmserve.model_backend.platforms.device import platform_for
    from tests.fakes.ranks.engine import make_runner
    from tests.fakes.ranks.plans_ahead import plans, run

    directory = TINY["llama"](folder / kind)
    made = plans(_NUM_TOKENS, SamplingParams(max_tokens=1000, seed=settings.seed, **_AHEAD[kind]))
    found = []
    for depth in (1, 2, 3):
        runner = make_runner(directory, platform=platform_for(settings.device, "float32"), device=settings.device)
        found.append([result.tokens for result in run(runner, made, depth)])
    assert found[1] == found[0], "two plans in flight give other tokens than one"
    assert found[2] == found[0], "three plans in flight give other tokens than one"
    return {"steps": len(made)}


def _graphs(folder: Path, family: str, settings: Settings) -> Figures:
    """Decode steps that are replayed write the tokens of steps that are computed launch by launch. Drawn tokens and
    bfloat16 of the first family alone."""
    from benchmarks.checkpoints.tiny import TINY
    from mmserve.checkpoint.load import load
    from mmserve.messages.sampling import SamplingParams

    directory, rng = TINY[family](folder / f"graphs-{family}"), random.Random(settings.seed)
    spec = load(directory)
    prompts = [_text_prompt(rng, length) for length in (3, 40, 7)]
    if spec.vision is not None:
        prompts.append(_picture_prompt(rng, spec))
    figures: dict[str, Any] = {}
    then = _have_captured if settings.device == "cuda" else _any_runner
    first = family == _CAPTURED[0]
    for dtype in ("float32", "bfloat16") if first and not settings.small else ("float32",):
        for name, temperature in (("greedy", 0.0), ("drawn", 0.9)) if first else (("greedy", 0.0),):
            sampling = SamplingParams(max_tokens=1000, temperature=temperature, seed=settings.seed, logprobs=1)
            on = partial(_answers_on, directory, prompts, _NUM_TOKENS, settings.device, dtype, sampling)
            expected, found = on(enforce_eager=True), on(then=then)
            figures[f"part of {name} {dtype} tokens equal"] = _equal_part(expected, found)
            if dtype == "float32":
                _assert_equal(expected, found)
    return figures


def _have_captured(runner: Any) -> None:
    """Else the comparison would be of a step with itself."""
    assert runner._graphs is not None, "no decode step can be captured: see the log"
    assert runner._graphs.rungs, "no decode step could be captured: see the log"


def _any_runner(runner: Any) -> None:
    """A CPU captures nothing."""


def _packaged(settings: Settings, dtype: str) -> Figures:
    """Answers to questions whose right answer is known."""
    from mmserve.checkpoint.load import load
    from mmserve.checkpoint.locate import locate
    from mmserve.messages.sampling import SamplingParams
    from training.sample import samples

    directory = locate("llava")
    spec = load(directory)
    asked = list(samples(2 if settings.small else _QUESTIONS, seed=settings.seed % 10_000))
    tokenizer = _tokenizer(directory)
    prompts = [_chat_prompt(spec, tokenizer, sample) for sample in asked]
    greedy = SamplingParams(max_tokens=1000, temperature=0.0, logprobs=1)
    on = partial(_answers_on, directory, prompts, _ANSWER_TOKENS)
    expected, found = on("reference", "float32", greedy), on(settings.device, dtype, greedy)
    said = [_until_end(answer.tokens, spec.eos_token_ids) for answer in found]
    right = [
        tokenizer.decode(ids, skip_special_tokens=True).strip() == sample.answer.strip()
        for ids, sample in zip(said, asked, strict=True)
        if len(ids) < _ANSWER_TOKENS
    ]
    figures = {
        "questions": len(asked),
        "right": sum(right),
        "answered in full": len(right),
        "part of tokens equal": _equal_part(expected, found),
    }
    if dtype == "float32":
        _assert_equal(expected, found)
    return figures


def _answers_on(
    directory: Path,
    prompts: list[Any],
    num_tokens: int,
    device: str,
    dtype: str,
    sampling: Any,
    **more: Any,
) -> Any:
    """``device``: cuda, cpu, or reference: torch on the CPU."""
    import torch

    from benchmarks.gpu.models.greedy import answers
    from mmserve.model_backend.platforms.device import DTYPES, platform_for
    from mmserve.model_backend.platforms.reference import TorchPlatform

    if device == "reference":
        return answers(
            directory, TorchPlatform(torch.device("cpu"), DTYPES[dtype]), prompts, num_tokens, _CHUNK, sampling
        )
    platform = platform_for(device, dtype)
    return answers(directory, platform, prompts, num_tokens, _CHUNK, sampling, **more)


def _text_prompt(rng: random.Random, length: int) -> Any:
    from benchmarks.gpu.models.greedy import Prompt

    return Prompt([rng.randrange(_FIRST_ID, _LAST_ID) for _ in range(length)])


def _picture_prompt(rng: random.Random, spec: Any) -> Any:
    """Text, then each picture's runs of rows with a token behind each, then text."""
    from benchmarks.gpu.models.greedy import Prompt, processed
    from tests.fakes.pictures.media import png

    pictures = processed(spec, [png(rng.randrange(1000), *size) for size in _SIZES])
    ids = _text_prompt(rng, 9).ids
    for picture in pictures:
        for run in picture.expansion.runs:
            ids += [*[spec.image_token_id] * run.rows, rng.randrange(_FIRST_ID, _LAST_ID)]
    return Prompt(ids + _text_prompt(rng, 5).ids, pictures)


def _tokenizer(directory: Path) -> Any:
    import transformers

    return transformers.AutoTokenizer.from_pretrained(directory)


def _chat_prompt(spec: Any, tokenizer: Any, sample: Any) -> Any:
    """As the server writes it: the chat template, with each picture's text in place of its placeholder."""
    from benchmarks.gpu.models.greedy import Prompt, processed
    from mmserve.processors.registry import processor_for

    text = tokenizer.apply_chat_template(sample.messages, add_generation_prompt=True, tokenize=False)
    pictures = processed(spec, sample.images) if sample.images else ()
    processor = processor_for(spec)
    assert processor is not None
    first, *rest = text.split(processor.placeholder)
    text = first + "".join(f"{picture.expansion.text}{after}" for picture, after in zip(pictures, rest, strict=True))
    runs = iter([run for picture in pictures for run in picture.expansion.runs])
    ids: list[int] = []
    for token in tokenizer(text, add_special_tokens=False)["input_ids"]:
        ids += [token] * next(runs).rows if token == spec.image_token_id else [token]
    return Prompt(ids, pictures)


def _until_end(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    return tokens[: next((index for index, token in enumerate(tokens) if token in ends), len(tokens))]


def _assert_equal(expected: Any, found: Any) -> None:
    """What follows a near tie is another text, so it is not compared."""
    for index, (right, got) in enumerate(zip(expected, found, strict=True)):
        same = _num_equal(right, got)
        if same < len(right.tokens):
            apart = abs(right.logprobs[same] - got.logprobs[same])
            assert apart <= _NEAR_TIE, f"prompt {index}: token {same} differs, its logprob by {apart:.2g}"


def _num_equal(right: Any, got: Any) -> int:
    """Tokens before the first that differs."""
    pairs = enumerate(zip(right.tokens, got.tokens, strict=True))
    return next((index for index, (one, other) in pairs if one != other), len(right.tokens))


def _equal_part(expected: Any, found: Any) -> float:
    """Of the tokens, each answer up to its first that differs."""
    equal = sum(_num_equal(right, got) for right, got in zip(expected, found, strict=True))
    return equal / sum(len(right.tokens) for right in expected)


def _largest_difference(expected: Any, found: Any) -> float:
    """Of the logprobs, each answer up to its first token that differs, and of that one."""
    pairs = [
        pair
        for right, got in zip(expected, found, strict=True)
        for pair in zip(right.logprobs[: _num_equal(right, got) + 1], got.logprobs, strict=False)
    ]
    return max(abs(one - other) for one, other in pairs)
