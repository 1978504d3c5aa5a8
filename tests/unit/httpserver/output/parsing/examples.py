"""What models write in each format, and what it means.

A meaning is a list of ("text", ...), ("reasoning", ...), ("call", name, arguments) and, for a call that is not
complete, ("cut", name, arguments).
"""

from __future__ import annotations

from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text

Meaning = list[tuple[str, ...]]
TOOLS = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "size": {"type": "number"},
            "deep": {"type": "object"},
            "list": {"type": ["array", "null"]},
            "loud": {"type": "boolean"},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "any": {},
            "kind": {"$ref": "#/$defs/kind"},
        },
        "$defs": {"kind": {"enum": [1, 2]}},
    },
    "g": {"type": "object", "properties": {}},
}


def meaning(pieces: list[Piece]) -> Meaning:
    read: Meaning = []
    for piece in pieces:
        match piece:
            case Text(text):
                read.append(("text", text))
            case Reasoning(text):
                read.append(("reasoning", text))
            case CallStart(_, name):
                read.append(("cut", name, ""))
            case CallArguments(_, json):
                read.append((*read.pop()[:2], json))
            case CallEnd():
                read.append(("call", *read.pop()[1:]))
    return read


def text(value: str) -> Meaning:
    return [("text", value)]


HERMES_F = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
CODER_F = "<tool_call>\n<function=f>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"
GEMMA_F = '<|tool_call>call:f{city:<|"|>Oslo<|"|>}<tool_call|>'
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, SEP, ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
SEEK_F = f'{ONE}function{SEP}f\n```json\n{{"city": "Oslo"}}\n```{ONE_END}'
F = ("call", "f", '{"city": "Oslo"}')
G = ("call", "g", "{}")

EXAMPLES: dict[str, list[tuple[str, Meaning]]] = {
    "hermes": [
        (HERMES_F, [F]),
        (f"Let me see.\n{HERMES_F}\n{HERMES_F}\n", [("text", "Let me see."), F, F]),
        (f"<think>\nOslo?\n</think>\n\nWell,\n{HERMES_F}", [("reasoning", "Oslo?"), ("text", "Well,"), F]),
        ('<tool_call>{"name":"g","arguments":{}}</tool_call> Done. ', [G, ("text", "Done. ")]),
        ('<tool_call>\n{"name": "g"}\n</tool_call>', [G]),
        ('<tool_call>\n{"arguments": {"city": "Oslo"}, "name": "f"}\n</tool_call>!', [F, ("text", "!")]),
        (
            '<tool_call>\n{"name": "f", "arguments": {"city": "a } \\" </tool_call> \\\\"}}\n</tool_call>',
            [("call", "f", '{"city": "a } \\" </tool_call> \\\\"}')],
        ),
        (
            '<tool_call>\n{"name": "f", "arguments": {"city":"東 \\ud83d\\ude00 😀","deep":{"a":[{}]}}}\n</tool_call>',
            [("call", "f", '{"city":"東 \\ud83d\\ude00 😀","deep":{"a":[{}]}}')],
        ),
        ('<tool_call>\n{"id": 7, "name": "f", "arguments": {"city": "Oslo"}, "type": "x"}\n</tool_call>', [F]),
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Os', [("cut", "f", '{"city": "Os')]),
        ('<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_', [F]),
        ('<tool_call>\n{"name": "f", "argu', text('<tool_call>\n{"name": "f", "argu')),
        ('<tool_call>\n{"name": "f", "arguments": {oops}}\n</tool_call>', [("cut", "f", "{oops}")]),
        (
            '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
            text('<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ),
        ("The <tool_call> tag begins a call.\n", text("The <tool_call> tag begins a call.\n")),
        (f"<tool_call>\n{HERMES_F}", [("text", "<tool_call>"), F]),
        (f"<tool_call>\n<tool_ {HERMES_F}", [("text", "<tool_call>\n<tool_"), F]),
        (f"<think>I call {HERMES_F}Hot.", [("reasoning", "I call"), F, ("text", "Hot.")]),
        ("<think>Is <tool_call> a tag?</think>Yes", [("reasoning", "Is <tool_call> a tag?"), ("text", "Yes")]),
        ("<think>\nhm, hm \n", [("reasoning", "hm, hm \n")]),
        (" Write <think> first.", text(" Write <think> first.")),
        (
            '<tool_call>\n{"name": "f", "arguments": "city"}\n</tool_call>',
            text('<tool_call>\n{"name": "f", "arguments": "city"}\n</tool_call>'),
        ),
        ('<tool_call>\n[{"name": "g", "arguments": {}}, {"name": "g", "arguments": {}}]\n</tool_call>', [G, G]),
    ],
    "qwen3-coder": [
        (CODER_F, [F]),
        (f"I look.\n\n{CODER_F}\n{CODER_F}", [("text", "I look."), F, F]),
        ("<tool_call>\n<function=g>\n</function>\n</tool_call>", [G]),
        ("<function=g></function>", [G]),
        ("<function=f>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>!", [F, ("text", "!")]),
        (
            "<function=f><parameter=city>\n007\n</parameter><parameter=days>\n7\n</parameter>"
            "<parameter=size>1.50</parameter><parameter=loud>True</parameter></function>",
            [("call", "f", '{"city": "007", "days": 7, "size": 1.50, "loud": true}')],
        ),
        (
            '<function=f><parameter=deep>\n{"a": "}"}\n</parameter><parameter=list>null</parameter>'
            "<parameter=either>null</parameter><parameter=any>[1]</parameter><parameter=kind>2</parameter></function>",
            [("call", "f", '{"deep": {"a": "}"}, "list": null, "either": null, "any": [1], "kind": 2}')],
        ),
        (
            "<function=f><parameter=days>many</parameter><parameter=new>1</parameter></function>",
            [("call", "f", '{"days": "many", "new": "1"}')],
        ),
        (
            '<function=f><parameter=city>\n\na "b"\\\t</parameter> </function> </tool_call> ü\n\n</parameter>',
            [("call", "f", '{"city": "\\na \\"b\\"\\\\\\t"}'), ("text", "ü\n\n</parameter>")],
        ),
        (
            "<function=f><parameter=city>\nx</parameter> y </function> </tool_call>\n</parameter></function>",
            [("call", "f", '{"city": "x</parameter> y </function> </tool_call>"}')],
        ),
        ("<tool_call>\n<function=f>\n<parameter=city>\nOs", [("cut", "f", '{"city": "Os')]),
        ("<tool_call>\n<function=f>\n<parameter=days>\n1", [("cut", "f", '{"days": 1')]),
        ("<tool_call>\n<function=f>\n<parameter=ci", [("cut", "f", "")]),
        ("<tool_call>\n<function=f", text("<tool_call>\n<function=f")),
        ("Use <function=f and <tool_call> tags", text("Use <function=f and <tool_call> tags")),
        ("<function=f><parameter= no tag", [("cut", "f", ""), ("text", "<parameter= no tag")]),
        ("<function=f>\nwhat?", [("cut", "f", ""), ("text", "what?")]),
        (f"<think>hm{CODER_F}", [("reasoning", "hm"), F]),
    ],
    "llama3-json": [
        ('{"name": "f", "parameters": {"city": "Oslo"}}', [F]),
        ('<|python_tag|>{"name": "f", "parameters": {"city": "Oslo"}}', [F]),
        ('{"name": "g", "parameters": {}}; {"name": "f", "parameters": {"city": "Oslo"}}', [G, F]),
        ('{"type": "function", "name": "g", "parameters": {}}\n', [G]),
        ('{"name": "f", "arguments": {"city": "Oslo"}} That is it.', [F, ("text", "That is it.")]),
        ('\n{"name": "f", "parameters": {"city": "Oslo"}}', [F]),
        ('{"name": "Bob", "age": 3}', text('{"name": "Bob", "age": 3}')),
        ('{"name": "Bob"}', text('{"name": "Bob"}')),
        ('{"a": 1}\n', text('{"a": 1}\n')),
        ('Call {"name": "g", "parameters": {}}', text('Call {"name": "g", "parameters": {}}')),
        ('{"name": "f", "parameters": {"city": "}{\\"; é"}}', [("call", "f", '{"city": "}{\\"; é"}')]),
        ('{"name": "f", "parameters": {"city', [("cut", "f", '{"city')]),
        ('{"name": "f", "par', text('{"name": "f", "par')),
        (
            '<think>{"name": "g", "parameters": {}}</think>{"name": "g", "parameters": {}}',
            [("reasoning", '{"name": "g", "parameters": {}}'), G],
        ),
        ("<|python_tag|>print(1)", text("<|python_tag|>print(1)")),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "f", "arguments": {"city": "Oslo"}, "id": "abcdefghi"}]', [F]),
        ('[TOOL_CALLS] [{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"city": "Oslo"}}]', [G, F]),
        ('[TOOL_CALLS]f[ARGS]{"city": "Oslo"}', [F]),
        ('Well. [TOOL_CALLS]g[ARGS]{}[TOOL_CALLS]f[ARGS]{"city": "Oslo"}', [("text", "Well."), G, F]),
        ("[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}", [G]),
        ('[TOOL_CALLS]f{"city": "Oslo"}', [F]),
        (
            '[TOOL_CALLS]f[ARGS]{"city": "[TOOL_CALLS] ]} \\" é"} and',
            [("call", "f", '{"city": "[TOOL_CALLS] ]} \\" é"}'), ("text", "and")],
        ),
        ('[TOOL_CALLS]f[ARGS]{"city', [("cut", "f", '{"city')]),
        ('[TOOL_CALLS][{"name": "g", "arguments": {}}, {"name": "f", "arguments": {"ci', [G, ("cut", "f", '{"ci')]),
        ("[TOOL_CALLS]f[AR", text("[TOOL_CALLS]f[AR")),
        ("[TOOL_CALLS] begins calls", text("[TOOL_CALLS] begins calls")),
        ("[THINK]hm[/THINK]Hi [TOOL_CALLS]g[ARGS]{}", [("reasoning", "hm"), ("text", "Hi"), G]),
        ("[THINK]hm[TOOL_CALLS]g[ARGS]{}", [("reasoning", "hm"), G]),
        ("[a] list", text("[a] list")),
    ],
    "pythonic": [
        ('[f(city="Oslo")]', [F]),
        ("[g(), f(city='Oslo')]", [G, F]),
        ('<|python_start|>[f(city="Oslo")]<|python_end|>', [F]),
        ('[f("Oslo", days=-2)]', [("call", "f", '{"city": "Oslo", "days": -2}')]),
        (
            '[f(city="a)] \\" é", deep={"a": [None, True, 1.5]}, list=())] Done',
            [("call", "f", '{"city": "a)] \\" é", "deep": {"a": [null, true, 1.5]}, "list": []}'), ("text", "Done")],
        ),
        ('[f(city="""two "\n"lines""")]', [("call", "f", '{"city": "two \\"\\n\\"lines"}')]),
        ("[g(),\n g()]\n", [G, G]),
        ("[g(), f(city=open('x'))]", [G, ("text", ", f(city=open('x'))]")]),
        ('[f(city="Os', text('[f(city="Os')),
        ("[f(city=__import__('os'))]", text("[f(city=__import__('os'))]")),
        ("[link](http://x) and", text("[link](http://x) and")),
        ("[h(1)] is a footnote", text("[h(1)] is a footnote")),
        ("[g() is good", text("[g() is good")),
        ("[f(size=1e999)]", text("[f(size=1e999)]")),
        (f"[f(days={'9' * 400})]", [("call", "f", f'{{"days": {"9" * 400}}}')]),
        (f"[f(days=0x{'f' * 9000})]", text(f"[f(days=0x{'f' * 9000})]")),
        ("[f(city='\\ud800')]", text("[f(city='\\ud800')]")),
        ("[1, 2]", text("[1, 2]")),
        ("See [g()]", text("See [g()]")),
        ("[f(a=1, a=2)]", text("[f(a=1, a=2)]")),
        ("<think>[g()]</think>[g()]", [("reasoning", "[g()]"), G]),
    ],
    "lfm2": [
        ('<|tool_call_start|>[f(city="Oslo"), g()]<|tool_call_end|>Hm.', [F, G, ("text", "Hm.")]),
        ("[g()] is text here", text("[g()] is text here")),
    ],
    "olmo3": [
        ("<function_calls>\ng()\nf(city='Oslo')\n</function_calls>", [G, F]),
        ("<function_calls>[g()]</function_calls>", [G]),
        ("<function_calls> are tags", text("<function_calls> are tags")),
    ],
    "gemma": [
        ('```tool_code\nf(city="Oslo")\n```', [F]),
        ('I call:\n```tool_code\nf(city="Oslo")\n```\nand then', [("text", "I call:"), F, ("text", "and then")]),
        ("```tool_code\ng()\nf(city='Oslo')\n```", [G, F]),
        ("```tool_code\n[g(), g()]\n```", [G, G]),
        ("```tool_code\ng()\n```\n```tool_code\ng()\n```", [G, G]),
        ("```tool_code\nf(city='``` ) é')\n```", [("call", "f", '{"city": "``` ) é"}')]),
        ("```tool_code\nprint(1 + 1)\n```", text("```tool_code\nprint(1 + 1)\n```")),
        ("```python\ng()\n```", text("```python\ng()\n```")),
        ("```tool_code\nf(city='Os", text("```tool_code\nf(city='Os")),
        ("```tool_co", text("```tool_co")),
        ("```tool_code\ng()\n`", [G]),
    ],
    "gemma4": [
        (GEMMA_F, [("call", "f", '{"city":"Oslo"}')]),
        (f"So.{GEMMA_F}<|tool_call>call:g{{}}<tool_call|>", [("text", "So."), ("call", "f", '{"city":"Oslo"}'), G]),
        ("<|channel>thought\nhm<channel|>Hi", [("reasoning", "hm"), ("text", "Hi")]),
        (f"<|channel>thought\nhm{GEMMA_F}", [("reasoning", "hm"), ("call", "f", '{"city":"Oslo"}')]),
        (
            '<|tool_call>call:f{days:42,size:-1e3,loud:true,list:[1,<|"|>z<|"|>, null],deep:{a:{}},any:x}<tool_call|>',
            [("call", "f", '{"days":42,"size":-1e3,"loud":true,"list":[1,"z", null],"deep":{"a":{}},"any":"x"}')],
        ),
        (
            '<|tool_call>call:f{city:<|"|>a "b" } , é\n<tool_call|><|"|>}<tool_call|>',
            [("call", "f", '{"city":"a \\"b\\" } , é\\n<tool_call|>"}')],
        ),
        ('<|tool_call>call:f{city:<|"|>Os', [("cut", "f", '{"city":"Os')]),
        ("<|tool_call>call:f{days:4", [("cut", "f", '{"days":4')]),
        ("<|tool_call>call:", text("<|tool_call>call:")),
        ("<|tool_call> is a token", text("<|tool_call> is a token")),
        ("<|tool_call>call:f{days:}<tool_call|>x", [("cut", "f", '{"days":}'), ("text", "x")]),
        ('<|tool_call>call:f{<|"|>a b<|"|>:1}<tool_call|>', [("call", "f", '{"a b":1}')]),
    ],
    "deepseek": [
        (f"{BEGIN}{SEEK_F}{END}", [F]),
        (f"Let me see.{BEGIN}{SEEK_F}\n{SEEK_F}{END}", [("text", "Let me see."), F, F]),
        (f'{BEGIN}{ONE}f{SEP}{{"city": "Oslo"}}{ONE_END}{ONE}g{SEP}{{}}{ONE_END}{END}', [F, G]),
        (f"<think>hm</think>\n\n{BEGIN}{SEEK_F}{END}", [("reasoning", "hm"), F]),
        (SEEK_F, [F]),
        (f"{BEGIN}{ONE}g{SEP}{{}}{ONE_END}{END} Then", [G, ("text", "Then")]),
        (
            f'{BEGIN}{ONE}function{SEP}f\n```json\n{{"city": "``` }} \\" é{ONE_END}"}}\n```{ONE_END}{END}',
            [("call", "f", f'{{"city": "``` }} \\" é{ONE_END}"}}')],
        ),
        (f'{BEGIN}{ONE}function{SEP}f\n```json\n{{"city": "O', [("cut", "f", '{"city": "O')]),
        (f"{BEGIN}{SEEK_F}{ONE}fun", [F, ("text", f"{ONE}fun")]),
        (f"{BEGIN}{ONE}function{SEP}f\nno", text(f"{BEGIN}{ONE}function{SEP}f\nno")),
        (f"{BEGIN} and {END}", text(f"{BEGIN} and {END}")),
        (f"<think>hm{BEGIN}{SEEK_F}{END}", [("reasoning", "hm"), F]),
    ],
}
EXAMPLES["deepseek-v3.1"] = EXAMPLES["deepseek"]
THINKING = {"mistral": "mistral", "gemma4": "gemma4"}
"""Style of reasoning in the examples of a format; ``think`` for the others."""
