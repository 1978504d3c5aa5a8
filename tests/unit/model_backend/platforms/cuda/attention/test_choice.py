"""Which attention a GPU gets, and what is said where Triton's kernels cannot compute. The GPU is the interpreter."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from mmserve.config.fields import AttentionChoice
from mmserve.model_backend.attention.interface import AttentionSpec, Mask
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cuda.attention import choice, self_test
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu, triton_attention
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from mmserve.model_backend.platforms.cuda.ops import TritonOps
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.runtime.errors import StartupError
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

GPU = Gpu(torch.device("cpu"), (9, 0), 2, 227 << 10)
SPEC = AttentionSpec(2, 1, 16, (Mask(), Mask(24, whole_images=True)))


def chosen(option: AttentionChoice, spec: AttentionSpec = SPEC, gpu: Gpu = GPU) -> TritonAttention | None:
    return triton_attention(option, spec, torch.float32, torch.float32, gpu)


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tiling = AttentionTiling(Tiling(16, 64, 4, 1), Tiling(32, 64, 4, 1), split_tokens=128, segment_tokens=128)
    monkeypatch.setattr(self_test, "tiling_of", lambda *_: tiling)


@needs_interpreter
@pytest.mark.usefixtures("small_sizes")
def test_kernels_that_pass_their_test_are_used() -> None:
    assert isinstance(chosen("auto"), TritonAttention)


def test_torch_is_used_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: pytest.fail("looked for Triton"))
    assert chosen("torch") is None


@pytest.mark.parametrize(
    ("spec", "gpu", "problem"),
    [
        (SPEC, GPU._replace(capability=(7, 5)), "compute capability is 7.5, and the kernels need 8.0"),
        (AttentionSpec(2, 1, 40), GPU, "heads of 40 numbers"),
        (AttentionSpec(2, 1, 512), GPU, "heads of 512 numbers"),
        (AttentionSpec(128, 1, 64), GPU, "128 queries to a key"),
    ],
    ids=str,
)
def test_a_problem_that_is_known_beforehand(
    spec: AttentionSpec, gpu: Gpu, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert chosen("auto", spec, gpu) is None
    assert problem in caplog.text
    with pytest.raises(StartupError, match=f"--attention-backend triton: .*{problem}.*; choose torch"):
        chosen("triton", spec, gpu)


def test_without_triton_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None if name == "triton" else find_spec(name))
    assert chosen("auto") is None
    with pytest.raises(StartupError, match="Triton is not installed"):
        chosen("triton")


def no_compiler(*args: Any) -> None:
    raise RuntimeError("Failed to find C compiler.\nMore of it")


def no_headers(*args: Any) -> None:
    """As Triton raises it where the compiler does not find Python.h."""
    raise subprocess.CalledProcessError(1, ["gcc", "main.c"])


@needs_interpreter
@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda *args: None, "results differ by"),
        (no_compiler, r"RuntimeError: Failed to .* More of it\)"),
        (no_headers, "CalledProcessError: .*gcc"),
    ],
)
@pytest.mark.parametrize("part", ["_attend_in_splits", "_prefill"])
def test_kernels_that_fail_their_test_are_not_used(
    part: str, mistake: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TritonAttention, part, mistake)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # what is not computed is 0, not by chance the result before
    assert chosen("auto") is None
    with pytest.raises(StartupError, match=f"its self-test failed .*{message}"):
        chosen("triton")


@needs_interpreter
@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize(
    ("option", "attention", "ops"), [("auto", TritonAttention, TritonOps), ("torch", SdpaAttention, TorchOps)]
)
def test_the_platform_follows_the_option(
    option: AttentionChoice, attention: type, ops: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gpu, "of", lambda device: GPU)
    platform = CudaPlatform(GPU.device, torch.float32, option)
    assert type(platform.attention(SPEC, torch.float32)) is attention
    assert type(platform.ops()) is ops


def test_an_old_gpu_is_refused_to_the_tower_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "of", lambda device: GPU._replace(capability=(7, 0)))
    assert type(CudaPlatform(GPU.device, torch.float16).ops()) is TorchOps
    with pytest.raises(StartupError, match="compute capability is 7"):
        CudaPlatform(GPU.device, torch.float16, "triton").ops()
