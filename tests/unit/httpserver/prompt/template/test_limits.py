"""A template, or a conversation made for it, cannot take a worker's time or memory; known kinds render as before."""

import logging
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from mmserve.httpserver.prompt.template import limits as template_limits
from mmserve.httpserver.prompt.template.chat_template import ChatTemplate
from mmserve.runtime.errors import InvalidRequest

LARGE = "y" * 60_000
DOUBLING = "{%% set ns = namespace(a=%s, b=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}%s"


def doubled(start: str, step: str, use: str) -> str:
    steps = "".join("{% set ns." + name + " = " + step.replace("X", f"ns.{name}") + " %}" for name in "ab")
    return DOUBLING % (start, start, steps, "{{ " + use + " }}")


HOSTILE = {
    "a text times a number": "{{ 'x' * 10**9 }}",
    "a long range": "{% for i in range(10**9) %}x{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "endless macros": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless loop calls": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "text in a loop": "{% for i in range(99999) %}" + LARGE + "{% endfor %}",
    "text in a block": "{% set x %}{% for i in range(99999) %}" + LARGE + "{% endfor %}{% endset %}",
    "doubling by +": doubled("'x'", "X + X", "1"),
    "doubling by ~": doubled("'x'", "X ~ X", "1"),
    "lists in lists, written": doubled("[1]", "[X, X]", "ns.a"),
    "lists in lists, compared": doubled("[1]", "[X, X]", "ns.a == ns.b"),
    "objects in objects, compared": doubled("1", "dict(a=X, b=X)", "ns.a == ns.b"),
    "tuples in tuples, looked up": doubled("(1,)", "(X, X)", "{}[ns.a]"),
    "tuples in tuples, as a name": doubled("(1,)", "(X, X)", "{ns.a: 1}"),
    "tuples in tuples, searched": doubled("(1,)", "(X, X)", "ns.a in [ns.b]"),
    "lists in lists, by a filter": doubled("[1]", "['', '']|map('default', X, true)|list", "ns.a|tojson"),
    "a list in itself": "{% set ns = namespace(a=1) %}{% set ns.a = [ns] %}{{ ns.a ~ 'x' }}",
    "a growing list": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + ['x' * 50000] %}{% endfor %}",
    "a width of %": "{{ '%1000000000s' % 'x' }}",
    "a width of % from the input": "{{ '%*s' % (10**9, 'x') }}",
    "a width of the filter": "{{ '%1000000000s' | format('x') }}",
    "a width of format": "{{ '{:1000000000}'.format('x') }}",
    "a width of format from the input": "{{ '{:{w}}'.format('x', w=10**9) }}",
    "format's fields again and again": "{{ ('{0}' * 20000).format('x' * 60000) }}",
    "centred": "{{ 'x' | center(10**9) }}",
    "a method that pads": "{{ 'x'.ljust(10**9) }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "parts of a list": "{{ [1] | batch(10**9, 'x') | list }}",
    "slices of a list": "{{ [1] | slice(10**9) | list }}",
    "names of an object": "{{ dict(a=1).fromkeys(range(99999), 'x') }}",
    "joined by a filter": "{{ range(99999) | join('" + LARGE + "') }}",
    "joined by a method": "{{ '" + LARGE + "'.join(range(99999) | map('string')) }}",
    "replaced by a filter": "{{ '" + LARGE + "' | replace('y', '" + LARGE + "') }}",
    "replaced by a method": "{{ '" + LARGE + "'.replace('', '" + LARGE + "') }}",
    "indented": "{{ ('a\n' * 1000) | indent(10**9) }}",
    "indented JSON": "{{ messages | tojson(indent=10**9) }}",
    "separated JSON": "{{ messages | tojson(separators=('" + LARGE + "', ':')) }}",
    "a large power": "{{ 2 ** 100000 }}",
    "large products": "{% set ns = namespace(n=1) %}{% for i in range(99) %}{% set ns.n = ns.n * 9**900 %}{% endfor %}",
    "a sum of lists": "{{ [[1]] | sum(start=[]) }}",
    "digits": "{{ 1.5 | round(10**9) }}",
    "slices of a text": "{% for i in range(99999) %}{% set x = ('" + LARGE + "')[::-1] %}{% endfor %}",
    "lorem ipsum": "{{ lipsum(n=10**6) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_stopped(
    source: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(template_limits, "MAX_CPU_S", 0.05)
    template = ChatTemplate(source, {}, prompt_chars=1000)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(InvalidRequest) as caught:
        template.render([{"role": "user", "content": "secret"}])
    assert caught.value.param == "messages"
    assert "secret" not in caplog.text


def test_an_ordinary_template_cannot_be_made_to_run_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_CPU_S", 0.05)
    quadratic = "{% for a in messages %}{% for b in messages %}{{ b.content if loop.last }}{% endfor %}{% endfor %}"
    template = ChatTemplate(quadratic, {}, prompt_chars=1000)
    assert template.render([{"role": "user", "content": "a"}] * 3) == "aaa"
    with pytest.raises(InvalidRequest, match=r"more than 0\.05 s"):
        template.render([{"role": "user", "content": "a"}] * 5000)


def test_long_conversations_are_rendered_whole() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role ~ ': ' + m.content }}{% endfor %}", {}, prompt_chars=1000)
    conversation = [{"role": "user", "content": "x" * 5000}] * 400
    assert len(template.render(conversation)) == 400 * 5006


def test_the_clients_text_does_not_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate("{% if true %}\n{{ messages[0].content.index('no') }}{% endif %}", {})
    with pytest.raises(InvalidRequest, match="ValueError"):
        template.render([{"role": "user", "content": "secret"}])
    assert "ValueError in line 2" in caplog.text
    assert "secret" not in caplog.text


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "size": {"type": "number"}},
            "required": ["colour"],
        },
    },
}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Paint <b>it</b>, \U0001f600 'please'"},
    {
        "role": "assistant",
        "content": "<think>hm</think>\n\nDone",
        "tool_calls": [
            {"type": "function", "function": {"name": "paint", "arguments": {"colour": "red", "size": 3.5}}}
        ],
    },
    {"role": "tool", "content": "ok", "name": "paint"},
    {"role": "tool", "content": "ok again", "name": "paint"},
    {"role": "user", "content": "Thanks"},
]
SHAPES = {
    "hermes": """{%- if tools %}{{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}{% endif %}<tools>{% for tool in tools %}{{ "\\n" }}{{ tool | tojson }}
        {%- endfor %}</tools>{{ '<|im_end|>\\n' }}{% endif %}
        {%- set ns = namespace(multi_step_tool=true, last=messages|length - 1) %}
        {%- for message in messages[::-1] %}{% set index = (messages|length - 1) - loop.index0 %}
        {%- if ns.multi_step_tool and message.role == 'user' and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{% set ns.last = index %}{% endif %}{% endfor %}
        {%- for message in messages %}{% if message.role == 'assistant' %}{% set content = message.content %}
        {%- if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content }}{% for call in message.tool_calls or [] %}
        {%- set call = call.function if call.function else call %}{{ '\\n<tool_call>\\n{"name": "' ~ call.name }}
        {{- '", "arguments": ' ~ (call.arguments if call.arguments is string else call.arguments | tojson) }}
        {%- endfor %}{{ '<|im_end|>\\n' }}{% elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>' + message.content }}{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
        {%- endif %}{% else %}{{ '<|im_start|>%s\\n%s<|im_end|>\\n' % (message.role, message['content']) }}{% endif %}
        {%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{{ ns.last }}""",
    "macros of types": """{%- macro kind(spec, names=[]) -%}{% if spec.type == 'string' and spec.enum %}
        {{- '"' ~ spec.enum | join('" | "') ~ '"' }}{% elif spec.type in ['number', 'integer'] %}number
        {%- elif spec.type == 'object' %}{ {%- for name, each in spec.properties | dictsort %}
        {{- name }}{{ '' if name in (spec.required or []) else '?' }}: {{ kind(each, names + [name]) }}
        {%- if not loop.last %}, {% endif %}{% endfor %} }{% else %}any{% endif %}{{ names | length }}{% endmacro -%}
        {%- for tool in tools %}{% set f = tool.function %}type {{ f.name }} = (_: {{ kind(f.parameters) }}) => any;
        {{ f.description.replace('.', '!') | upper }}{% endfor %}
        {%- for message in messages | rejectattr('role', 'equalto', 'tool') %}{{ message | tojson(indent=2) }}
        {%- endfor %}{{ messages | map(attribute='role') | unique | list }}""",
    "alternating": """{%- set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages %}
        {%- for message in loop_messages | selectattr('role', 'in', ['user', 'assistant']) %}
        {%- set content = message['content'] | trim %}
        {%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content + ' [/INST]' }}
        {%- else %}{{ ' ' ~ content ~ eos_token }}{% endif %}{% if loop.index0 % 2 == 1 %}|{% endif %}
        {%- if loop.index == 3 %}{% break %}{% endif %}{% endfor %}{{ {'a': [1, none, true]} }}{{ -7 // 2 }}""",
    "collected": """{%- set ns = namespace(parts=[], text='', n=0) %}{%- for m in messages %}
        {%- set ns.n = ns.n + 1 %}{% set ns.parts = ns.parts + [{'role': m.role, 'at': loop.index}] %}
        {%- set ns.text = ns.text ~ '%-10s|%s' | format(m.role, m.content | length) %}{% endfor %}
        {%- call(x) wrapped('a') %}{{ x }}{{ ns.text }}{% endcall %}
        {%- macro wrapped(a) %}[{{ caller(a * 3) }}]{% endmacro %}
        {{- ns.parts }}{{ ns.parts[-2:] | map(attribute='at') | join('-') }}
        {{- ns.parts | groupby('role') | length }}
        {%- filter upper %}end {{ '{} {:>4}'.format('x', 7) }}{% endfilter %}{{ ns.n ** 2 }}{{ missing }}""",
}


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
def test_kinds_of_templates_render_as_in_transformers(source: str) -> None:
    if "caller" in source:  # macros must be defined before they are called
        head, _, macro = source.partition("{%- macro wrapped")
        macro, end, rest = macro.partition("{% endmacro %}")
        source = "{%- macro wrapped" + macro + end + head + rest
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    variables: dict[str, Any] = {"tools": [TOOL], "add_generation_prompt": True, **special}
    expected = render_jinja_template([CONVERSATION], chat_template=source, **variables)[0]
    assert ChatTemplate(source, special).render(CONVERSATION, tools=[TOOL]) == expected[0]
