// The stages that the server measured, as the page groups them. Pure.

import type { Message, Usage } from "./model.ts";

export interface Part {
  name: string;
  meaning: string;
  ms: number;
}

/** Name, what it is, and the server's stages in it. "write" is a part of the server's "alloc". */
const PARTS: readonly (readonly [string, string, readonly string[]])[] = [
  ["read", "request and pictures read", ["body", "fetch"]],
  ["hash", "content keys of the pictures", ["hash"]],
  ["alloc", "room in the media cache", ["alloc"]],
  ["prompt", "template and tokenizer", ["prompt"]],
  ["wait", "until the pictures were decoded in turn", ["turn"]],
  ["encode", "pictures decoded and encoded", ["image_decode", "encode"]],
  ["queue", "until there was a slot", ["queue"]],
  ["prefill", "until the first token", ["prefill"]],
  ["decode", "from the first token to the last", ["decode"]],
];

/** The parts that took time, in order. */
export function partsOf(stages: Record<string, number>): Part[] {
  return PARTS.map(([name, meaning, of]) => ({ name, meaning, ms: of.reduce((sum, stage) => sum + (stages[stage] ?? 0), 0) })).filter(
    (part) => part.ms > 0,
  );
}

/** Of the tokens after the first; null if there are too few. */
export function tokensPerSecond({ usage, timing }: Message): number | null {
  const after = (usage?.completion_tokens ?? 0) - 1;
  const ms = timing ? (timing.stages_ms.decode ?? timing.total_ms - timing.ttft_ms) : 0;
  return after > 0 && ms > 0 ? (1000 * after) / ms : null;
}

export function cachedOf(usage: Usage): number {
  return usage.prompt_tokens_details?.cached_tokens ?? 0;
}
