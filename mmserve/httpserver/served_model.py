"""Facts of the served model that requests are checked against: its names, limits and sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.prompt.template.chat_template import ALWAYS_GIVEN, template_of, variables_read
from mmserve.httpserver.sampling_defaults import SamplingDefaults, read_sampling_defaults
from mmserve.processors.image_processors import ImageProcessors, image_processors_for
from mmserve.runtime.errors import InvalidRequest, ModelNotFound, quoted


@dataclass(frozen=True)
class ServedModel:
    """Made once, when the worker starts."""

    name: str
    names: tuple[str, ...]
    """All names that are listed; the first is ``name``."""
    aliases: frozenset[str]
    """These names, the model as it was given, the checkpoint's path and its base name."""
    max_model_len: int
    vocab_size: int
    hidden_size: int
    max_images: int | None
    """Most images in one prompt; None for a text model."""
    eos_token_ids: tuple[int, ...]
    image_processors: ImageProcessors | None
    image_token_id: int | None
    """Stands for an image in the template's text; None for a text model."""
    seed: int
    sampling_defaults: SamplingDefaults
    template_variables: frozenset[str]
    """Variables that the chat template reads, besides those that every template gets."""
    takes_tools: bool
    """True if the chat template shows tools to the model."""

    @classmethod
    def of(cls, deployment: Deployment) -> ServedModel:
        model, config = deployment.model, deployment.config
        variables = variables_read(template_of(model) or "")
        names = tuple(dict.fromkeys((deployment.served_name, *config.served_model_name)))
        return cls(
            name=deployment.served_name,
            names=names,
            aliases=frozenset({*names, config.model, model.path, Path(model.path).name}),
            max_model_len=deployment.max_model_len,
            vocab_size=model.text.vocab_size,
            hidden_size=model.text.hidden_size,
            max_images=None if model.vision is None else config.limit_mm_per_prompt,
            eos_token_ids=model.eos_token_ids,
            image_processors=image_processors_for(model),
            image_token_id=model.image_token_id,
            seed=config.seed,
            sampling_defaults=read_sampling_defaults(model.path),
            template_variables=variables - ALWAYS_GIVEN,
            takes_tools="tools" in variables,
        )

    def check_name(self, name: str | None) -> None:
        """Raise ModelNotFound unless ``name`` is one of the aliases, empty or None."""
        if name and name not in self.aliases:
            raise self.not_found(name)

    def not_found(self, name: str) -> ModelNotFound:
        """The error for another name than those served."""
        served = f"{self.name!r} is" if len(self.names) == 1 else f"{', '.join(map(repr, self.names))} are"
        return ModelNotFound(f"the model {quoted(name)} is not served here; {served}", param="model")

    def check_given_name(self, name: str | None) -> None:
        """As ``check_name``, where the protocol wants a name. Raises InvalidRequest without one."""
        if not name:
            raise InvalidRequest("you must provide a model parameter", param="model")
        self.check_name(name)

    def check_template_variable(self, name: str, param: str) -> None:
        """Raise InvalidRequest unless the chat template reads this variable and a client may set it."""
        if name not in self.template_variables:
            known = ", ".join(sorted(self.template_variables)) or "none"
            raise InvalidRequest(
                f"the model's chat template has no variable {quoted(name)}; it has: {known}",
                param=f"{param}.{name[:60]}",
            )

    def image_options(self, kwargs: Mapping[str, Any] | None) -> str:
        """``Processing.options`` of a request's ``mm_processor_kwargs``. Raises InvalidRequest."""
        if not kwargs:
            return ""
        if self.image_processors is None:
            raise InvalidRequest("this model takes no images", param="mm_processor_kwargs")
        return self.image_processors.checked(kwargs, "mm_processor_kwargs")

    def reasoning_variables(self, effort: str, param: str = "reasoning_effort") -> dict[str, Any]:
        """The effort in ``param`` as variables of the chat template. Raises InvalidRequest if it has none for it."""
        variables: dict[str, Any] = {}
        if "enable_thinking" in self.template_variables:
            variables["enable_thinking"] = effort != "none"
        if "reasoning_effort" in self.template_variables and effort != "none":
            variables["reasoning_effort"] = effort
        if not variables and effort != "none":
            raise InvalidRequest("the model's chat template has no switch for reasoning", param=param)
        return variables
