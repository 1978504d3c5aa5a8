"""The one model served here, as the protocols see it: names it answers to, limits and defaults. Made at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mmserve.config.deployment import Deployment
from mmserve.httpserver.sampling_defaults import SamplingDefaults, read_sampling_defaults
from mmserve.runtime.errors import ModelNotFound


@dataclass(frozen=True)
class ServedModel:
    """Facts of the deployment that requests are checked against."""

    name: str
    aliases: frozenset[str]
    max_model_len: int
    vocab_size: int
    max_images: int | None
    """Images in one prompt; None for a text model."""
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
        """Raise ModelNotFound unless ``name`` is the served name, the checkpoint's path or its base name, or absent."""
        if name and name not in self.aliases:
            raise ModelNotFound(f"the model {name!r} is not served here; {self.name!r} is", param="model")
