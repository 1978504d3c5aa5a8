// The state of the page: conversations, the one that is shown, and what its server says of itself.

import { computed, type Signal, signal } from "@preact/signals";
import { json } from "../shared/api.ts";
import * as database from "./database.ts";
import { dropDrafts, keepDraft } from "./drafts.ts";
import { type Conversation, DEFAULT_OPTIONS, isLive, type Message, newConversation, type Options } from "./model.ts";

export interface Server {
  version: string;
  model: string;
  max_model_len: number;
  /** null: the model takes no pictures. */
  max_images: number | null;
}

export const server = signal<Server | null>(null);
/** Why nothing is known of the server; empty: it is known, or was not asked yet. */
export const serverError = signal("");
export const conversations = signal<Conversation[]>([]);
export const currentId = signal("");
const OPTIONS_KEY = "mmserve.options";
/** Messages of the conversations that were opened, with answers that are being written. */
const opened = new Map<string, Signal<Message[]>>();

export const current = computed(() => conversations.value.find((one) => one.id === currentId.value) ?? null);
/** Options of a conversation that has no message yet, which are those of the last one. */
export const newOptions = signal<Options>(storedOptions());
export const options = computed(() => current.value?.options ?? newOptions.value);
const none = signal<Message[]>([]);
export const messages = computed(() => (opened.get(currentId.value) ?? none).value);

export async function askServer(): Promise<void> {
  try {
    await knownServer();
    serverError.value = "";
  } catch (error) {
    serverError.value = error instanceof Error ? error.message : String(error);
  }
}

/** What is known of the server, which is asked if it was not yet. Throws what it failed with. */
export async function knownServer(): Promise<Server> {
  return (server.value ??= await json<Server>("server_info"));
}

export async function start(): Promise<void> {
  const stored = await database.allConversations();
  const begun = conversations.value; // Meanwhile: a person may ask before the database answers.
  conversations.value = [...begun, ...stored.filter(({ id }) => !begun.some((one) => one.id === id))];
  await askServer();
}

export async function open(id: string): Promise<void> {
  if (id && !opened.has(id)) {
    // An answer that was being written when the page was closed is not written any more.
    const stored = (await database.messagesOf(id)).map((one) => (isLive(one) ? { ...one, status: "cut" as const } : one));
    if (!opened.has(id)) opened.set(id, signal(stored));
  }
  currentId.value = id;
}

/** The conversation that is shown, or a new one. */
export function ensureCurrent(): Conversation {
  if (current.value) return current.value;
  const made = newConversation(newOptions.value);
  opened.set(made.id, signal([]));
  conversations.value = [made, ...conversations.value];
  currentId.value = made.id;
  return made;
}

export function messagesIn(conversation: string): Message[] {
  return opened.get(conversation)?.value ?? [];
}

export function change(conversation: Conversation, changes: Partial<Conversation>): Conversation {
  const changed = { ...(conversations.value.find((one) => one.id === conversation.id) ?? conversation), ...changes };
  conversations.value = conversations.value
    .map((one) => (one.id === changed.id ? changed : one))
    .sort((one, other) => other.updated - one.updated);
  void database.keepConversation(changed);
  return changed;
}

/** Add messages, or replace those with the same id. ``keep``: in the database too. */
export function put(changed: Message[], keep = true): void {
  const first = changed[0];
  if (!first) return;
  const list = opened.get(first.conversation);
  if (!list) return;
  const byId = new Map(changed.map((one) => [one.id, one]));
  const replaced = list.value.map((one) => {
    const found = byId.get(one.id);
    byId.delete(one.id);
    return found ?? one;
  });
  list.value = [...replaced, ...byId.values()];
  if (keep) void database.keepMessages(changed);
}

/** Remove the messages from this place on. */
export function cutAt(conversation: string, order: number): void {
  const list = opened.get(conversation);
  if (!list) return;
  void database.dropMessages(list.value.filter((one) => one.order >= order));
  list.value = list.value.filter((one) => one.order < order);
}

export function setOptions(changes: Partial<Options>): void {
  newOptions.value = { ...options.value, ...changes };
  if (current.value) change(current.value, { options: newOptions.value });
  try {
    localStorage.setItem(OPTIONS_KEY, JSON.stringify(newOptions.value));
  } catch {
    // They then last until the page is closed.
  }
}

export function remove(id: string): void {
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (currentId.value === id) currentId.value = "";
  opened.delete(id);
  keepDraft(id, "");
  void database.dropConversation(id);
}

export function removeAll(): void {
  conversations.value = [];
  currentId.value = "";
  opened.clear();
  dropDrafts();
  void database.dropAll();
}

function storedOptions(): Options {
  try {
    return { ...DEFAULT_OPTIONS, ...JSON.parse(localStorage.getItem(OPTIONS_KEY) ?? "{}") };
  } catch {
    return { ...DEFAULT_OPTIONS };
  }
}
