// Source code as coloured elements.

import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";
import { type ComponentChild, h } from "preact";

const lowlight = createLowlight({ bash, cpp, css, diff, go, java, json, python, rust, sql, typescript, xml, yaml });
lowlight.registerAlias({ typescript: ["js", "jsx", "ts", "tsx", "javascript"], cpp: ["c", "h"], bash: ["console", "shell"] });
/** Longer code is shown without colours: it would take longer than a frame. */
const MAX_CHARS = 20_000;

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

/** ``code`` in colours if its language is known. */
export function highlighted(code: string, language: string): ComponentChild {
  if (!lowlight.registered(language) || code.length > MAX_CHARS) return code;
  return lowlight.highlight(language, code).children.map(element);
}

function element(node: Node): ComponentChild {
  if (node.type === "text") return node.value;
  if (node.type !== "element") return null;
  const classes = node.properties.className;
  return h("span", { class: Array.isArray(classes) ? classes.join(" ") : "" }, node.children.map(element));
}
