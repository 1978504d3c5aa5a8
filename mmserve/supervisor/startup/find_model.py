"""What ``--model`` names, and which code computes it: mmserve's own, or that of transformers.

transformers is asked in a child process, so that the supervisor imports neither it nor torch. The program is named as
text, like the server packages.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from mmserve.checkpoint.load import load, read_config
from mmserve.checkpoint.locate import locate
from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.checkpoint.registry import is_served
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.fields import ModelImpl
from mmserve.processors.settings import with_options
from mmserve.runtime.errors import StartupError

_DESCRIBER = "mmserve.model_backend.models.generic.describe"
_OFFLINE = {"HF_HUB_OFFLINE": "1"}
logger = logging.getLogger(__name__)


def find_model(config: Config) -> ModelSpec:
    """The model that ``--model`` names; may download it. Raises StartupError."""
    model = read_model(locate(config.model), config.model_impl)
    if model.family == "transformers":
        logger.warning(
            "%s is computed by transformers' modules: slower than mmserve's own code (no kernels but for attention), "
            "and without --tp and --quantization",
            config.model,
        )
    if config.mm_processor_kwargs is None:
        return model
    if model.vision is None:
        raise StartupError(f"--mm-processor-kwargs: {config.model} is a text model, it has no image processor")
    return with_options(model, config.mm_processor_kwargs)


def read_model(directory: Path, impl: ModelImpl) -> ModelSpec:
    """Raises StartupError if no code, or not the one that ``impl`` asks for, computes this checkpoint."""
    directory = directory.resolve()
    config = read_config(directory)
    if impl == "mmserve" or (impl == "auto" and is_served(config)):
        return load(directory)
    name = next(iter(config.get("architectures") or []), config.get("model_type") or "an unnamed architecture")
    if (scheme := read_scheme(config)) is not None:
        raise StartupError(f"{name} would be computed by transformers' modules, without quantised weights ({scheme})")
    if importlib.util.find_spec("transformers") is None:
        raise StartupError(
            f"{name} needs the modules of transformers, which are not installed: pip install 'mmserve[transformers]', "
            "or choose a model that mmserve computes itself (mmserve models)"
        )
    return _described(directory, name)


def _described(directory: Path, name: str) -> ModelSpec:
    """Asks transformers."""
    command = [sys.executable, "-m", _DESCRIBER, str(directory)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ | _OFFLINE
    )
    # Other libraries may print lines before the answer.
    lines = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
    if done.returncode == 0:
        return msgspec.json.decode(lines[-1], type=ModelSpec)
    raise StartupError(f"{name} is not supported, neither by mmserve's own code nor through transformers: {lines[-1]}")
