// Markdown as elements. It never passes through a string of HTML: markup in it is shown as text, pictures become links,
// and a link leads only where a person can see it leads.

import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChild } from "preact";
import { memo } from "preact/compat";
import { useState } from "preact/hooks";
import { copy } from "./clipboard.ts";
import { decoded } from "./entities.ts";
import { highlighted } from "./highlight.ts";
import { CheckIcon, CopyIcon } from "./icons.tsx";

const PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

export function Markdown({ text }: { text: string }) {
  return <>{new Lexer({ gfm: true }).lex(text).map((token, index) => <Block key={index} raw={token.raw} token={token} />)}</>;
}

/** Drawn again only when its own text has changed. */
const Block = memo(
  ({ token }: { raw: string; token: Token }) => <>{block(token)}</>,
  (before, after) => before.raw === after.raw && before.token.type === after.token.type,
);

function blocks(tokens: Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(block);
}

function block(token: Token): ComponentChild {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      const Heading = `h${Math.min(token.depth + 2, 6)}` as "h3";
      return <Heading>{inlines(token.tokens)}</Heading>;
    }
    case "code":
      return <Code code={token.text} language={(token.lang ?? "").trim().split(/\s+/)[0].toLowerCase()} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens)}</blockquote>;
    case "hr":
      return <hr />;
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    case "paragraph":
      return <p>{inlines(token.tokens)}</p>;
    case "html":
      return <p class="markup">{token.raw}</p>;
    default:
      return inline(token);
  }
}

function list(token: Tokens.List): ComponentChild {
  const items = token.items.map((item) => (
    <li class={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled aria-label={item.checked ? "done" : "not done"} />}
      {blocks(item.tokens.filter((each) => each.type !== "checkbox"))}
    </li>
  ));
  return token.ordered ? <ol start={token.start === "" ? 1 : token.start}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table): ComponentChild {
  const cell = (Tag: "th" | "td", each: Tokens.TableCell) => (
    <Tag class={each.align ? `align-${each.align}` : undefined}>{inlines(each.tokens)}</Tag>
  );
  return (
    <div class="table" tabIndex={0} role="group" aria-label="Table">
      <table>
        <thead><tr>{token.header.map((each) => cell("th", each))}</tr></thead>
        <tbody>{token.rows.map((row) => <tr>{row.map((each) => cell("td", each))}</tr>)}</tbody>
      </table>
    </div>
  );
}

function inlines(tokens: Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(inline);
}

function inline(token: Token): ComponentChild {
  switch (token.type) {
    case "text":
      return token.tokens ? inlines(token.tokens) : decoded(token.text);
    case "escape":
      return decoded(token.text);
    case "strong":
      return <strong>{inlines(token.tokens)}</strong>;
    case "em":
      return <em>{inlines(token.tokens)}</em>;
    case "del":
      return <del>{inlines(token.tokens)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return link(token.href, inlines(token.tokens), token.raw);
    case "image":
      return link(token.href, [`picture: ${decoded(token.text || token.href)}`], token.raw);
    default:
      return token.raw;
  }
}

function link(href: string, content: ComponentChild[], raw: string): ComponentChild {
  const url = safeUrl(href);
  if (url === null) return raw;
  return <a href={url} title={url} target="_blank" rel="noopener noreferrer nofollow">{content}</a>;
}

/** A whole URL to the web or to a mail program; null for anything else. */
export function safeUrl(href: string): string | null {
  try {
    const url = new URL(decoded(href));
    return PROTOCOLS.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function Code({ code, language }: { code: string; language: string }) {
  const [copied, setCopied] = useState(false);
  const onCopy = async () => {
    setCopied(await copy(code));
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        <button type="button" class="quiet small" onClick={onCopy}>
          {copied ? <CheckIcon /> : <CopyIcon />}
          {copied ? "Copied" : "Copy"}
        </button>
      </figcaption>
      <pre tabIndex={0}><code>{highlighted(code, language)}</code></pre>
    </figure>
  );
}
