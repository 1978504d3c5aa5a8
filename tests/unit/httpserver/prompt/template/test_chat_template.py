import json
from pathlib import Path

import msgspec
import pytest

from mmserve.httpserver.prompt.template.chat_template import ChatTemplate, template_of, template_source
from mmserve.httpserver.prompt.user_text import UserMarks
from mmserve.runtime.errors import InvalidRequest, StartupError
from tests.fakes.models.chat_models import CHATML, LLAMA_2, LLAVA_15
from tests.fakes.pictures.media import model_spec

HELLO = [{"role": "user", "content": "hello"}]


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert template_source(tmp_path) is None
    listed = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "listed"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": listed}))
    assert template_source(tmp_path) == "listed"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert template_source(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert template_source(tmp_path) == "jinja"


def test_a_family_has_a_template_for_checkpoints_whose_own_takes_no_images(tmp_path: Path) -> None:
    model = msgspec.structs.replace(model_spec(tmp_path), chat_template="of the family")
    assert template_of(model) == "of the family"
    (tmp_path / "chat_template.jinja").write_text("text alone")
    assert template_of(model) == "of the family"
    assert template_of(model_spec(tmp_path)) == "text alone"
    (tmp_path / "chat_template.jinja").write_text("{% if part.type == 'image' %}")
    assert template_of(model) == "{% if part.type == 'image' %}"


@pytest.mark.parametrize(
    ("source", "parts", "strings"),
    [(CHATML, True, True), (LLAVA_15, True, False), (LLAMA_2, False, True), ("{{ 1 / 0 }}", False, False)],
)
def test_content_formats_are_detected(source: str, parts: bool, strings: bool) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert (template.takes_parts, template.takes_strings) == (parts, strings)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "hello\n"),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]'),
        ("{{ {'é': '<'} | tojson(indent=1) }}", '{\n "é": "<"\n}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ bos_token }}{{ tools }}{{ missing }}{{ add_generation_prompt }}", "<s>NoneTrue"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}{{ dict(a=1)['a'] }}", "21"),
    ],
)
def test_renders_like_transformers(source: str, expected: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO) == expected


def test_renders_the_same_as_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = [{"role": "user", "content": [{"type": "text", "text": " Hi "}, {"type": "image"}]}]
    for source in (CHATML, LLAVA_15):
        rendered, _ = render_jinja_template([conversation], chat_template=source, add_generation_prompt=True)
        assert ChatTemplate(source, {}).render(conversation) == rendered[0]


def test_template_errors_are_invalid_requests() -> None:
    with pytest.raises(InvalidRequest, match="only today"):
        ChatTemplate("{{ raise_exception('only today') }}", {}).render(HELLO)
    with pytest.raises(InvalidRequest, match="cannot render"):
        ChatTemplate("{{ 1 / 0 }}", {}).render(HELLO)
    with pytest.raises(StartupError, match="not valid"):
        ChatTemplate("{% if %}", {})


@pytest.mark.parametrize(
    "source",
    ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"],
)
def test_templates_run_in_a_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source + "{{ missing.attribute }}", {}).render(HELLO)


def test_marks_find_the_users_characters() -> None:
    marks = UserMarks()
    rendered = f"[INST] {marks.mark('  hi there ').strip()} [/INST]{marks.mark('')}{marks.mark(' ')}{marks.mark('x')}"
    text, user = marks.unmark(rendered)
    assert text == "[INST] hi there [/INST] x"
    assert [text[start:end] for start, end in user] == ["hi there", "x"]


def test_text_after_a_lost_mark_counts_as_the_users() -> None:
    marks = UserMarks()
    cut_before = marks.mark("secret</think>answer").split("</think>")[-1]
    text, user = marks.unmark("a " + cut_before + " b")
    assert (text, user) == ("a answer b", [(0, 8)])
    cut_after = marks.mark("answer and more").split(" ")[0]
    text, user = marks.unmark("a " + cut_after + " b")
    assert (text, user) == ("a answer b", [(2, 10)])
