// Conversations as files, and back. What comes in is checked: a file may be from anywhere.

import { newId, shortened } from "../shared/format.ts";
import * as database from "./database.ts";
import { dataUrl } from "./body.ts";
import { type Conversation, DEFAULT_OPTIONS, isLive, type Message, type Options, type Picture } from "./model.ts";
import { conversations } from "./state.ts";

const FORMAT = "mmserve-conversations";
const VERSION = 1;
const MAX_BYTES = 200e6;
const STATUSES = new Set(["done", "stopped", "cut", "error"]);

export interface Exported {
  format: typeof FORMAT;
  version: number;
  conversations: (Conversation & { messages: unknown[] })[];
}

/** Save these conversations as a file of JSON, with their pictures. */
export async function exportConversations(chosen: Conversation[]): Promise<void> {
  const exported: Exported = { format: FORMAT, version: VERSION, conversations: [] };
  for (const conversation of chosen) {
    const messages = await Promise.all((await database.messagesOf(conversation.id)).map(withDataUrls));
    exported.conversations.push({ ...conversation, messages });
  }
  const only = chosen.length === 1 ? chosen[0] : undefined;
  save(`${fileName(only?.title ?? "mmserve chats")}.json`, JSON.stringify(exported, null, 1));
}

async function withDataUrls(message: Message): Promise<unknown> {
  const pictures = message.pictures.map(async ({ blob, ...picture }) => (blob ? { ...picture, url: await dataUrl(blob) } : picture));
  return { ...message, pictures: await Promise.all(pictures) };
}

function save(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function fileName(title: string): string {
  return shortened(title.replace(/[^\p{L}\p{N} ._-]+/gu, "_"), 60).replace(/…$/, "") || "chat";
}

/** Add the conversations of a file, under new ids. Returns how many; throws Error with what is wrong with the file. */
export async function importConversations(file: File): Promise<number> {
  if (file.size > MAX_BYTES) throw new Error("the file is larger than 200 MB");
  const found = parseExport(await file.text());
  for (const { conversation, messages } of found) {
    for (const message of messages) message.pictures = await Promise.all(message.pictures.map(withBlob));
    await database.keepConversation(conversation);
    await database.keepMessages(messages);
  }
  conversations.value = await database.allConversations();
  return found.length;
}

/** Pictures in the file become blobs again. Only data: URLs are read here, which asks nothing of the network. */
async function withBlob(picture: Picture): Promise<Picture> {
  if (!picture.url?.startsWith("data:")) return picture;
  const { url, ...rest } = picture;
  const [head = "", base64 = ""] = url.split(",", 2);
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return { ...rest, blob: new Blob([bytes], { type: /^data:(image\/[\w.+-]+)/.exec(head)?.[1] ?? "" }) };
}

/** Pure. Throws Error. */
export function parseExport(text: string): { conversation: Conversation; messages: Message[] }[] {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  if (!isRecord(data) || data.format !== FORMAT) throw new Error("the file holds no conversations of this page");
  if (data.version !== VERSION) throw new Error("the file is of another version of this page");
  return list(data.conversations).map((raw) => {
    const id = newId();
    const messages = list(raw.messages).map((message, order) => readMessage(message, id, order));
    const conversation = {
      id, title: string(raw.title) || "Imported chat", created: time(raw.created), updated: time(raw.updated), options: readOptions(raw.options),
    };
    return { conversation, messages };
  });
}

function readMessage(raw: Record<string, unknown>, conversation: string, order: number): Message {
  const role = raw.role === "assistant" ? "assistant" : "user";
  const message: Message = { id: newId(), conversation, order, role, text: string(raw.text), pictures: list(raw.pictures).map(readPicture), created: time(raw.created) };
  if (role === "user") return message;
  message.status = STATUSES.has(string(raw.status)) ? (raw.status as Exclude<Message["status"], undefined>) : "cut";
  if (isLive(message)) message.status = "cut";
  for (const field of ["reasoning", "error", "model", "finish"] as const) if (string(raw[field])) message[field] = string(raw[field]);
  return message;
}

function readPicture(raw: Record<string, unknown>): Picture {
  const url = string(raw.url);
  const picture: Picture = { id: newId(), name: string(raw.name) || "picture", url: /^(data:image\/|https?:)/.test(url) ? url : "" };
  const size = isRecord(raw.size) ? raw.size : {};
  const [width, height, tokens] = [size.width, size.height, size.tokens].map(Number);
  if (width && height && tokens) picture.size = { width, height, tokens };
  return picture;
}

function readOptions(raw: unknown): Options {
  const options = { ...DEFAULT_OPTIONS };
  if (isRecord(raw)) for (const name of Object.keys(options) as (keyof Options)[]) options[name] = string(raw[name]);
  return options;
}

function list(value: unknown): Record<string, unknown>[] {
  if (!Array.isArray(value) || !value.every(isRecord)) throw new Error("the file is damaged");
  return value;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

const string = (value: unknown) => (typeof value === "string" ? value : "");
const time = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : Date.now());
