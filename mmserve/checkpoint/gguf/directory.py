"""A checkpoint directory that stands for a GGUF file: its key-values as JSON files, and links to the files themselves.

A projector (``mmproj-*.gguf``) beside the file belongs to it. The directory is made once, in the user's cache
directory, so that no process but the first reads the file's key-values. Files of the usual names beside the GGUF file
(``BESIDE``) take the place of those made from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.gguf.names import ROPE_DIVISORS, text_name
from mmserve.checkpoint.gguf.projectors.files import is_projector, projector_beside
from mmserve.checkpoint.gguf.projectors.table import Described, describe
from mmserve.checkpoint.gguf.reader import GgufHeader, read_header
from mmserve.checkpoint.gguf.table import MODEL_FILE, PROJECTOR_FILE, Entry, whole, write_table
from mmserve.checkpoint.gguf.tensor_types import FILE_TYPES, QUANTIZED
from mmserve.checkpoint.gguf.text_config import architecture_of, text_config
from mmserve.checkpoint.gguf.tokenizer import GgufTokenizer
from mmserve.runtime import user_cache
from mmserve.runtime.errors import StartupError

BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
)
_VERSION = 2
"""Of what is made; part of the directory's name."""
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TOKENS_OF_ANOTHER_MODEL = 0.01


def gguf_files(directory: Path) -> list[Path]:
    """Of language models."""
    return sorted(path for path in directory.glob("*.gguf") if not is_projector(path))


def directory_of(path: Path, cache: Path | None = None) -> Path:
    """``path``: a GGUF file, or a directory with one. Raises StartupError for what is not supported."""
    file = _only_model(path) if path.is_dir() else path.resolve()
    if is_projector(file):
        raise StartupError(f"{file} is a projector: name the language model's file beside it")
    beside = [each for name in BESIDE if (each := file.parent / name).is_file()]
    projector = projector_beside(file)
    parent = (cache or user_cache.directory()) / "gguf"
    made = parent / f"{file.stem}-{_digest([file, *beside, *filter(None, [projector])])}"
    if not made.is_dir():
        parent.mkdir(exist_ok=True)
        _forget_lost_files(parent)
        with tempfile.TemporaryDirectory(dir=parent) as temporary:
            _write(Path(temporary) / made.name, file, projector, beside)
            with contextlib.suppress(OSError):  # another process has made it meanwhile
                (Path(temporary) / made.name).rename(made)
    return made


def _only_model(directory: Path) -> Path:
    models = gguf_files(directory)
    if len(models) != 1:
        names = ", ".join(each.name for each in models)
        raise StartupError(f"{directory} holds {len(models)} GGUF models ({names}): name one of the files")
    return models[0].resolve()


def _digest(files: list[Path]) -> str:
    about = [_VERSION, *((str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files)]
    return hashlib.sha256(msgspec.json.encode(about)).hexdigest()[:16]


def _forget_lost_files(parent: Path) -> None:
    """Directories made for files that are gone."""
    for made in parent.iterdir():
        link = made / MODEL_FILE
        if link.is_symlink() and not link.exists():
            shutil.rmtree(made, ignore_errors=True)


def _write(directory: Path, file: Path, projector: Path | None, beside: list[Path]) -> None:
    header, tower = read_header(file), None if projector is None else read_header(projector)
    try:
        made, described = _files(file, header, tower)
    except StartupError as error:
        raise StartupError(f"{' and '.join(str(each) for each in (file, projector) if each)}: {error}") from None
    directory.mkdir()
    (directory / MODEL_FILE).symlink_to(file)
    write_table(directory / MODEL_FILE, _named(header))
    if projector is not None and described is not None:
        (directory / PROJECTOR_FILE).symlink_to(projector)
        write_table(directory / PROJECTOR_FILE, described.entries)
    for name, content in made.items():
        (directory / name).write_bytes(msgspec.json.encode(content))
    if template := _template(header, described):
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    for each in beside:
        shutil.copyfile(each, directory / each.name)


def _files(
    file: Path, header: GgufHeader, tower: GgufHeader | None
) -> tuple[dict[str, dict[str, Any]], Described | None]:
    """JSON files by name, and what the projector's file says."""
    tokenizer, described = GgufTokenizer(header.metadata), None
    beside = read_json(file.parent / "tokenizer.json")
    if beside is not None:
        _check_same_tokens(tokenizer.tokens, beside)
    config, pictures = text_config(file, header), {}
    if tower is not None:
        described = describe(tower, header.metadata["general.architecture"], config, tokenizer)
        config, pictures = described.config, {"preprocessor_config.json": described.settings}
    made = pictures | {
        "config.json": config | _about_numbers(header, tower),
        "tokenizer.json": tokenizer.definition() if beside is None else beside,
        "tokenizer_config.json": tokenizer.config(),
        "generation_config.json": tokenizer.generation_config(),
    }
    return made, described


def _template(header: GgufHeader, described: Described | None) -> str:
    found = str(header.metadata.get("tokenizer.chat_template", ""))
    if described is None or described.token in found:
        return found
    return described.template or found


def _about_numbers(header: GgufHeader, tower: GgufHeader | None) -> dict[str, Any]:
    """Fields of config.json: how weights are stored."""
    tensors = [*header.tensors.values(), *(() if tower is None else tower.tensors.values())]
    kinds = Counter(tensor.kind.name for tensor in tensors if len(tensor.shape) > 1)
    architecture = architecture_of(header.metadata)
    stored = {"adjacent_rope": architecture.adjacent_rope, "offset_norms": architecture.offset_norms}
    if not kinds.keys() & QUANTIZED.keys():
        return {"gguf": stored, "dtype": _DTYPES[max(kinds, key=kinds.__getitem__, default="F32")]}
    mixture = FILE_TYPES.get(header.metadata.get("general.file_type", -1), "of mixed types")
    types = [f"{kind} {count}" for kind, count in kinds.most_common()]
    return {"gguf": stored, "quantization_config": {"quant_method": "gguf", "mixture": mixture, "matrices": types}}


def _named(header: GgufHeader) -> list[Entry]:
    """With names of Hugging Face's checkpoints."""
    norms = architecture_of(header.metadata).sandwich_norms
    tensors = (tensor for name, tensor in header.tensors.items() if name != ROPE_DIVISORS)
    return [whole(text_name(tensor.name, sandwich_norms=norms), tensor) for tensor in tensors]


def _check_same_tokens(tokens: list[str], beside: dict[str, Any]) -> None:
    """Raises StartupError if a tokenizer.json is of another model."""
    vocab = (beside.get("model") or {}).get("vocab")
    if not isinstance(vocab, dict):
        return
    others = sum(not 0 <= id < len(tokens) or tokens[id] != token for token, id in vocab.items())
    if others > _TOKENS_OF_ANOTHER_MODEL * len(vocab):
        raise StartupError(f"tokenizer.json beside it is of another model: {others} of {len(vocab)} tokens differ")
