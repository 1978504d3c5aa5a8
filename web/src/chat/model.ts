// What a conversation consists of, as it is shown, stored and exported.

import { newId, shortened } from "../shared/format.ts";

export interface Options {
  system: string;
  /** Empty: the server's default. */
  temperature: string;
  maxTokens: string;
  seed: string;
  /** JSON schema of the answer. */
  schema: string;
}

export const DEFAULT_OPTIONS: Options = { system: "", temperature: "", maxTokens: "", seed: "", schema: "" };

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  options: Options;
}

/** ``blob`` of a file, ``url`` of a picture that the server fetches. */
export interface Picture {
  id: string;
  name: string;
  blob?: Blob;
  url?: string;
  /** As the server sees it: pixels and tokens in the prompt. */
  size?: PictureSize;
  /** Why the server refuses it. */
  error?: string;
}

export interface PictureSize {
  width: number;
  height: number;
  tokens: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens: number; image_tokens: number };
}

/** Milliseconds that the server measured. */
export interface Timing {
  ttft_ms: number;
  total_ms: number;
  stages_ms: Record<string, number>;
}

/** "cut": the answer ended before the server had said that it was complete. */
export type Status = "waiting" | "streaming" | "done" | "stopped" | "cut" | "error";

export interface Message {
  id: string;
  conversation: string;
  /** Place in the conversation. */
  order: number;
  role: "user" | "assistant";
  text: string;
  pictures: Picture[];
  created: number;
  /** Of an answer. */
  status?: Status;
  reasoning?: string;
  error?: string;
  model?: string;
  finish?: string;
  usage?: Usage;
  timing?: Timing;
}

export function newConversation(options: Options): Conversation {
  const now = Date.now();
  return { id: newId(), title: "New chat", created: now, updated: now, options: { ...options } };
}

/** The beginning of its first question. */
export function titleOf(text: string, pictures: Picture[]): string {
  const line = text.trim().split("\n")[0] ?? "";
  return shortened(line || pictures[0]?.name || "New chat", 60);
}

/** Is the answer still being written? */
export function isLive(message: Message): boolean {
  return message.status === "waiting" || message.status === "streaming";
}
