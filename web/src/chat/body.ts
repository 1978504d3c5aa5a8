// The body of a chat completion, from a conversation. Pure but for reading pictures.

import type { Message, Options, Picture } from "./model.ts";

export type Part = { type: "text"; text: string } | { type: "image_url"; image_url: { url: string } };
export interface WireMessage {
  role: string;
  content: string | Part[];
}
export interface Body {
  model: string;
  messages: WireMessage[];
  temperature?: number;
  max_completion_tokens?: number;
  seed?: number;
  response_format?: unknown;
  stream: true;
  stream_options: { include_usage: true; include_timing: true };
}

/** ``urlOf``: the URL that stands for a picture. Throws OptionError. */
export async function bodyOf(
  model: string,
  options: Options,
  messages: Message[],
  urlOf: (picture: Picture) => Promise<string>,
): Promise<Body> {
  const system = options.system.trim() ? [{ role: "system", content: options.system }] : [];
  const wire: WireMessage[] = [];
  for (const message of messages) {
    if (message.role === "assistant" && !message.text) continue;
    const parts: Part[] = [];
    for (const picture of message.pictures) parts.push({ type: "image_url", image_url: { url: await urlOf(picture) } });
    if (message.text || !parts.length) parts.push({ type: "text", text: message.text });
    wire.push({ role: message.role, content: message.pictures.length ? parts : message.text });
  }
  return {
    model,
    messages: [...system, ...wire],
    ...sampling(options),
    stream: true,
    stream_options: { include_usage: true, include_timing: true },
  };
}

/** A setting that cannot be sent as it is. */
export class OptionError extends Error {
  constructor(
    readonly option: keyof Options,
    message: string,
  ) {
    super(message);
  }
}

/** The fields of the options that are set. The server judges their ranges. Throws OptionError. */
export function sampling(options: Options): Partial<Body> {
  const fields: Partial<Body> = {};
  const temperature = number(options, "temperature", "Temperature");
  const maxTokens = number(options, "maxTokens", "Max tokens");
  const seed = number(options, "seed", "Seed");
  if (temperature !== undefined) fields.temperature = temperature;
  if (maxTokens !== undefined) fields.max_completion_tokens = maxTokens;
  if (seed !== undefined) fields.seed = seed;
  if (options.schema.trim()) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: schemaOf(options.schema), strict: true } };
  }
  return fields;
}

function number(options: Options, option: keyof Options, label: string): number | undefined {
  const text = options[option].trim();
  if (!text) return undefined;
  const value = Number(text);
  if (!Number.isFinite(value)) throw new OptionError(option, `${label}: “${text}” is not a number`);
  return value;
}

function schemaOf(text: string): unknown {
  let schema: unknown;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    throw new OptionError("schema", `JSON schema: ${error instanceof Error ? error.message : "not JSON"}`);
  }
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
    throw new OptionError("schema", "JSON schema: it must be an object");
  }
  return schema;
}

export function dataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new Error("the picture could not be read: was the file moved?"));
    reader.readAsDataURL(blob);
  });
}

export async function urlOf(picture: Picture): Promise<string> {
  return picture.blob ? dataUrl(picture.blob) : (picture.url ?? "");
}
