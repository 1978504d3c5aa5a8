"""What must be equal on all machines of a server, or of several whose answers have the same text: compared, and named
where it differs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mmserve.config.options import OPTIONS
from mmserve.config.resolved.deployment import Deployment

_GROUPS = ("model", "scheduling")
_MAY_DIFFER = {
    "model", "served_model_name", "cpu_threads", "kernel_ways", "device", "speculative_model", "prefault",
    "attention_backend", "rank_sums",
}  # fmt: skip
"""Options that name files, or say how one machine computes the same numbers."""
_OF_TEXT = (
    "quantization", "model_impl", "tp", "seed", "tool_call_parser", "reasoning_parser", "mm_processor_kwargs",
    "limit_mm_per_prompt", "max_image_pixels",
)  # fmt: skip
"""Options that servers behind one front must have alike, for an answer to go on at another one."""
_WHOLE_NBYTES = 64 << 20
"""A file up to this size is read whole."""
_SAMPLES = 64
_SAMPLE_NBYTES = 4096


def facts_of(deployment: Deployment) -> dict[str, str]:
    """Name -> value. Names are those of options where there is one."""
    options = {
        option.flag: repr(getattr(deployment.config, option.name))
        for option in OPTIONS.values()
        if (option.group in _GROUPS and option.name not in _MAY_DIFFER) or option.name == "nnodes"
    }
    models = {"model": deployment.model, "draft model": deployment.draft}
    described = {
        f"configuration of the {name}": _digest(msgspec.json.encode(replace(model, path="")))
        for name, model in models.items()
        if model is not None
    }
    files = {
        f"files of the {name}": files_digest(Path(model.path)) for name, model in models.items() if model is not None
    }
    found = {"device": deployment.device, "--dtype": deployment.dtype, "context": str(deployment.max_model_len)}
    return {"version of mmserve": deployment.version, **options, **found, **described, **files}


def encoder_facts_of(deployment: Deployment) -> dict[str, str]:
    """Of a server and its encoders on other machines: what decides about the bytes of embedding rows."""
    model = deployment.model
    return {
        "version of mmserve": deployment.version,
        "processor": deployment.processor,
        "--dtype": deployment.dtype,
        "bytes of a row": str(deployment.embed_row_nbytes),
        "configuration of the model": _digest(msgspec.json.encode(replace(model, path=""))),
        "files of the model": files_digest(Path(model.path)),
    }


def text_facts_of(deployment: Deployment) -> dict[str, str]:
    """Of one of several servers: what decides about the text of an answer."""
    config, model = deployment.config, deployment.model
    facts = {
        "version of mmserve": deployment.version,
        "configuration of the model": _digest(msgspec.json.encode(replace(model, path=""))),
        "files of the model": files_digest(Path(model.path)),
        "processor": deployment.processor,
        "--dtype": deployment.dtype,
        "--kv-cache-dtype": deployment.kv_dtype,
        "context": str(deployment.max_model_len),
        **{OPTIONS[name].flag: repr(getattr(config, name)) for name in _OF_TEXT},
    }
    template = Path(model.path) / "chat_template.jinja"  # others are in the JSON files
    if template.exists():
        facts["chat template"] = _digest(template.read_bytes())
    if config.tp > 1:
        facts["--rank-sums"] = repr(config.rank_sums)
    if deployment.device == "cuda":
        facts["--attention-backend"] = repr(config.attention_backend)
    return facts


def digest_of(facts: dict[str, str]) -> str:
    """Equal for equal facts. Empty without any."""
    return _digest(msgspec.json.encode(sorted(facts.items()))) if facts else ""


def difference(head: dict[str, str], node: dict[str, str]) -> str:
    """The facts that differ, in words; empty if none does."""
    names = [name for name in sorted(head.keys() | node.keys()) if head.get(name) != node.get(name)]
    return ", ".join(f"{name} is {node.get(name, 'missing')}, not {head.get(name, 'missing')}" for name in names)


def files_digest(directory: Path) -> str:
    """Of names, sizes and contents. Of large files parts are read, evenly spread: enough to tell two trainings of one
    model apart, not to find a damaged file."""
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.iterdir() if path.suffix in (".json", ".safetensors", ".gguf")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            if size <= _WHOLE_NBYTES:
                digest.update(file.read())
                continue
            for index in range(_SAMPLES):
                file.seek(index * (size - _SAMPLE_NBYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_NBYTES))
    return digest.hexdigest()[:16]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
