"""Facts of the served model that requests are checked against: its names, limits and sampling defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmserve.config.deployment import Deployment
from mmserve.httpserver.sampling_defaults import SamplingDefaults, read_sampling_defaults
from mmserve.runtime.errors import ModelNotFound, quoted


@dataclass(frozen=True)
class ServedModel:
    """Made once, when the worker starts."""

    name: str
    aliases: frozenset[str]
    """The served name, the model as it was given, the checkpoint's path and its base name."""
    max_model_len: int
    vocab_size: int
    max_images: int | None
    """Most images in one prompt; None for a text model."""
    eos_token_ids: tuple[int, ...]
    seed: int
    sampling_defaults: SamplingDefaults

    @classmethod
    def of(cls, deployment: Deployment) -> ServedModel:
        model, config = deployment.model, deployment.config
        return cls(
            name=deployment.served_name,
            aliases=frozenset({deployment.served_name, config.model, model.path, Path(model.path).name}),
            max_model_len=deployment.max_model_len,
            vocab_size=model.text.vocab_size,
            max_images=None if model.vision is None else config.limit_mm_per_prompt,
            eos_token_ids=model.eos_token_ids,
            seed=config.seed,
            sampling_defaults=read_sampling_defaults(model.path),
        )

    def check_name(self, name: str | None) -> None:
        """Raise ModelNotFound unless ``name`` is one of the aliases, empty or None."""
        if name and name not in self.aliases:
            raise ModelNotFound(f"the model {quoted(name)} is not served here; {self.name!r} is", param="model")
