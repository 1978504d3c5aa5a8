// The request of an answer as a curl command or as Python, to be run elsewhere. Keys and pictures are not in it: a key is
// read from the environment, a picture from its file. Pure.

import type { Body } from "./body.ts";
import type { Message, Options, Picture } from "./model.ts";
import { bodyOf } from "./body.ts";

const KEY_VARIABLE = "MMSERVE_API_KEY";
/** Stands for the base64 text of a picture until the snippet is written. */
const MARK = "\u0001";

type Plain = Omit<Body, "stream" | "stream_options">;

/** The request, with marks for pictures of files; and the names of these files. */
async function plain(model: string, options: Options, messages: Message[]): Promise<[Plain, string[]]> {
  const files: string[] = [];
  const url = async (picture: Picture) => {
    if (!picture.blob) return picture.url ?? "";
    files.push(picture.name);
    return `data:${picture.blob.type || "image/png"};base64,${MARK}${files.length - 1}${MARK}`;
  };
  const { stream: _, stream_options: __, ...body } = await bodyOf(model, options, messages, url);
  return [body, files];
}

export async function curl(server: string, model: string, options: Options, messages: Message[], withKey: boolean): Promise<string> {
  const [body, files] = await plain(model, options, messages);
  const json = shellQuoted(JSON.stringify(body, null, 2)).replace(
    new RegExp(`${MARK}(\\d+)${MARK}|\\\\u0001(\\d+)\\\\u0001`, "g"),
    (_, one, other) => `'"$(base64 -w0 < ${shellQuoted(files[Number(one ?? other)] ?? "")})"'`,
  );
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $${KEY_VARIABLE}"` : "";
  // From standard input: a picture may be longer than a command line.
  return `printf '%s' ${json} |\ncurl ${shellQuoted(`${server}v1/chat/completions`)} \\\n  -H 'Content-Type: application/json'${key} \\\n  --data-binary @-\n`;
}

export async function python(server: string, model: string, options: Options, messages: Message[], withKey: boolean): Promise<string> {
  const [body, files] = await plain(model, options, messages);
  const { model: name, messages: asked, response_format: format, ...rest } = body;
  const fields = [["model", name], ["messages", asked], ...Object.entries(rest), ...(format ? [["response_format", format]] : [])];
  const lines = fields.map(([field, value]) => `    ${field}=${literal(value, 1, files)},`);
  const key = withKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"';
  const imports = [...(files.length ? ["import base64"] : []), ...(withKey ? ["import os"] : []), ...(files.length ? ["from pathlib import Path"] : [])];
  const helper = files.length
    ? `\n\ndef picture(path: str, kind: str) -> str:\n    return f"data:{kind};base64," + base64.b64encode(Path(path).read_bytes()).decode()\n\n`
    : "";
  return [
    ...imports, ...(imports.length ? [""] : []), "from openai import OpenAI", helper,
    `client = OpenAI(base_url=${literal(`${server}v1`, 0, [])}, api_key=${key})`,
    "answer = client.chat.completions.create(", ...lines, ")", "print(answer.choices[0].message.content)", "",
  ].join("\n").replace(/\n{4,}/g, "\n\n\n");
}

/** For a POSIX shell. */
function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A value of JSON as Python writes it. */
function literal(value: unknown, depth: number, files: string[]): string {
  const inner = "    ".repeat(depth + 1);
  const end = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") {
    const found = new RegExp(`^data:([^;]*);base64,${MARK}(\\d+)${MARK}$`).exec(value);
    return found ? `picture(${quoted(files[Number(found[2])] ?? "")}, ${quoted(found[1] ?? "")})` : quoted(value);
  }
  if (Array.isArray(value)) return value.length ? `[\n${value.map((each) => `${inner}${literal(each, depth + 1, files)},\n`).join("")}${end}]` : "[]";
  if (typeof value === "object") {
    const entries = Object.entries(value);
    return entries.length ? `{\n${entries.map(([name, each]) => `${inner}${quoted(name)}: ${literal(each, depth + 1, files)},\n`).join("")}${end}}` : "{}";
  }
  return String(value);
}

/** JSON's strings are Python's, but for characters outside the first plane, which JSON.stringify leaves as they are. */
function quoted(text: string): string {
  return JSON.stringify(text).replace(/\u007f/g, "\\u007f");
}
