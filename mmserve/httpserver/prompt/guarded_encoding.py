"""The input of a chat template to token ids, such that no string of the user becomes a control token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mmserve.httpserver.prompt.image_texts import expanded, places_of
from mmserve.httpserver.prompt.template.chat_template import ChatTemplate
from mmserve.httpserver.prompt.template.input import user_strings, with_user_strings
from mmserve.httpserver.prompt.tokenizer import ChatTokenizer
from mmserve.httpserver.prompt.user_text import UserMarks
from mmserve.runtime.errors import InvalidRequest


class EncodedText(NamedTuple):
    """A rendered prompt and its ids, both without what ``add_special_tokens`` adds."""

    text: str
    ids: list[int]


class GuardedEncoder:
    """``check_text`` is called with the rendered text before it is tokenized, and may raise. ``placeholder``: what the
    template writes for an image; empty for a text model."""

    def __init__(
        self, template: ChatTemplate, tokenizer: ChatTokenizer, check_text: Callable[[str], None], placeholder: str = ""
    ) -> None:
        self._template = template
        self._placeholder = placeholder
        self._tokenizer = tokenizer
        self._check_text = check_text
        self._marks = UserMarks()

    def encode(self, template_input: Mapping[str, Any], images: Sequence[str] = (), continued: str = "") -> EncodedText:
        """``template_input``: ``messages``, and whatever else the template is given (tools, documents, variables).

        Strings in it, names in objects included, are the user's; see ``template/input``. If one of them could forge a
        control token, the template is rendered again with marks around such strings. ``images``: the texts of the
        images, in the order of the placeholders. ``continued``: the prompt ends with this text, the last message's,
        without what the template writes after it. Raises InvalidRequest.
        """
        text = _until(continued, self._template.render(**template_input))
        self._check_text(text)
        if not any(map(self._tokenizer.may_forge, user_strings([*template_input.values()]))):
            return self._encode_plain(text, images)
        marked = {name: with_user_strings(value, self._mark) for name, value in template_input.items()}
        marked_text, user = self._marks.unmark(_until(continued, self._template.render(**marked)))
        if self._placeholder:
            marked_text, user = expanded(self._placeholder, marked_text, images, user)
        guarded = EncodedText(marked_text, self._tokenizer.encode_guarded(marked_text, user))
        if self._placeholder and len(places_of(self._placeholder, text)) != len(images):
            return guarded  # a user has written a placeholder
        plain = self._encode_plain(text, images)
        same = self._tokenizer.controls_in(plain.ids) == self._tokenizer.controls_in(guarded.ids)
        return plain if same else guarded

    def _encode_plain(self, text: str, images: Sequence[str]) -> EncodedText:
        """Encode a text in which users have forged nothing."""
        if self._placeholder:
            text, _ = expanded(self._placeholder, text, images)
        return EncodedText(text, self._tokenizer.encode(text))

    def _mark(self, text: str) -> str:
        """Other strings stay as they are: a template may compare them."""
        return self._marks.mark(text) if self._tokenizer.may_forge(text) else text


def _until(continued: str, text: str) -> str:
    """``text`` up to the end of ``continued``, which is the last place where it stands."""
    end = text.rfind(continued) + len(continued) if continued else len(text)
    if end < len(continued):
        raise InvalidRequest("the model's chat template does not show the last message", param="continue_final_message")
    return text[:end]
