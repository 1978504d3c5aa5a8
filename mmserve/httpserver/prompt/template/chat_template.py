"""Renders a checkpoint's chat template as transformers does.

Templates are untrusted code from checkpoints, so they run in a sandbox (``template_sandbox``) on strings, lists and
dicts.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from mmserve.checkpoint.files import read_json
from mmserve.checkpoint.spec import ModelSpec
from mmserve.httpserver.prompt.template.limits import TemplateContext, TemplateLimitExceeded
from mmserve.httpserver.prompt.template.sandbox import LimitedEnvironment
from mmserve.runtime.errors import InvalidRequest, StartupError

Conversation = list[dict[str, Any]]
"""Messages as transformers' templates take them: role, and content as a string or a list of typed parts."""

ALWAYS_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of every template. Besides these there are the tokenizer's special tokens, and what clients may set."""
_PROBE = "mmserveprobe"
_MAX_TIME_FORMAT = 200
logger = logging.getLogger(__name__)


class ChatTemplate:
    """``takes_parts``: content may be a list of parts; ``takes_strings``: it may be a string.

    ``takes_late_system``: a system message after other messages is rendered in its place.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], *, prompt_chars: int = 1 << 20) -> None:
        """``prompt_chars``: of the longest prompt, from which limits follow. Raises StartupError when the template is
        not valid jinja."""
        self._prompt_chars = prompt_chars
        try:
            self._template = _environment().template(source)
        except jinja2.TemplateError as error:
            raise StartupError(f"the model's chat template is not valid: {error}") from None
        self._special_tokens = special_tokens
        self.takes_strings = _PROBE in self._probe({"role": "user", "content": _PROBE})
        as_parts = self._probe({"role": "user", "content": [{"type": "text", "text": _PROBE}]})
        # A template for strings only prints the list itself.
        self.takes_parts = _PROBE in as_parts and "'text'" not in as_parts and '"text"' not in as_parts
        self.takes_late_system = self._renders_late_system()

    def render(self, messages: Conversation, **variables: Any) -> str:
        """The prompt's text. ``variables``: tools, documents and others; see ``template_variables``.

        Raises InvalidRequest with the template's own message.
        """
        try:
            return self._render(messages, variables)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses: {error.message}", param="messages") from None
        except TemplateLimitExceeded as error:
            logger.warning("the chat template was stopped: %s", error)
            raise InvalidRequest(
                f"the model's chat template fails for these messages: {error}", param="messages"
            ) from None
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            logger.warning(
                "the chat template failed: %s", self._where(error)
            )  # without its message, which may hold a text
            raise InvalidRequest(
                f"the model's chat template cannot render these messages ({type(error).__name__})", param="messages"
            ) from None

    def _render(self, messages: Conversation, variables: Mapping[str, Any]) -> str:
        usual = {"tools": None, "documents": None, "add_generation_prompt": True}
        given = {**variables, "messages": messages}
        context = self._template.new_context({**usual, **self._special_tokens, **given})
        assert isinstance(context, TemplateContext)
        context.limit(self._prompt_chars, given)
        return context.joined(self._template.root_render_func(context))

    def _where(self, error: Exception) -> str:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
        line = self._template.get_corresponding_lineno(lines[-1]) if lines and lines[-1] else 0
        return f"{type(error).__name__} in line {line}"

    def _renders_late_system(self) -> bool:
        texts = [f"{_PROBE}-{number}-" for number in range(4)]
        contents = texts if self.takes_strings else [[{"type": "text", "text": text}] for text in texts]
        turns = [
            {"role": role, "content": content}
            for role, content in zip(("user", "assistant", "user"), contents, strict=False)
        ]
        as_system = self._probe(*turns, {"role": "system", "content": contents[3]})
        as_assistant = self._probe(*turns, {"role": "assistant", "content": contents[3]})
        places = [as_system.find(text) for text in texts]
        # A template that only tells the user from others would make it the assistant's words.
        return -1 not in places and places == sorted(places) and as_system != as_assistant

    def _probe(self, *messages: dict[str, Any]) -> str:
        try:
            return self._render(list(messages), {})
        except Exception:  # noqa: BLE001 - any exception means that this format is not supported
            return ""


def template_of(model: ModelSpec) -> str | None:
    """Source of the checkpoint's template, or of the family's if the checkpoint's has nothing to do with images."""
    source = template_source(Path(model.path))
    return model.chat_template if model.chat_template and "image" not in (source or "") else source


def template_source(checkpoint: Path) -> str | None:
    """The template's source from the files that transformers reads, or None. Raises StartupError."""
    try:
        return (checkpoint / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = (read_json(checkpoint / name) or {}).get("chat_template")
        if isinstance(template, list):
            template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
        if isinstance(template, str):
            return template
    return None


def variables_read(source: str) -> frozenset[str]:
    """Variables that a template reads: not the special tokens, and no functions.

    None of a template that is not valid; ChatTemplate reports it.
    """
    environment = _environment()
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError:
        return frozenset()
    own = (*environment.globals, "self")
    return frozenset(name for name in names if name not in own and not name.startswith("_") and name[-6:] != "_token")


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format[:_MAX_TIME_FORMAT])
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}`` marks assistant text for training; here only the content counts."""

    tags = {"generation"}  # noqa: RUF012 - declared by jinja2

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
