// Conversations in this browser's IndexedDB. Nothing of them is kept on the server.

import { signal } from "@preact/signals";
import type { Conversation, Message } from "./model.ts";

const NAME = "mmserve";
const VERSION = 1;

/** Why conversations are lost when the page is closed; empty: they are kept. */
export const notKept = signal("");

let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab has an older version of this page open"));
  });
  return opened;
}

/** Run requests in one transaction. Failures are shown, and do not end the conversation. */
async function run<T>(mode: IDBTransactionMode, work: (store: (name: string) => IDBObjectStore) => IDBRequest<T> | null): Promise<T | undefined> {
  try {
    const database = await open();
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(["conversations", "messages"], mode);
      const request = work((name) => transaction.objectStore(name));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } catch (error) {
    const name = error instanceof DOMException && error.name === "QuotaExceededError" ? "the browser's storage is full" : String(error);
    notKept.value = `This browser does not keep conversations: ${name}`;
    return undefined;
  }
}

export async function allConversations(): Promise<Conversation[]> {
  const found = (await run<Conversation[]>("readonly", (store) => store("conversations").getAll())) ?? [];
  return found.sort((one, other) => other.updated - one.updated);
}

export async function messagesOf(conversation: string): Promise<Message[]> {
  const found = await run<Message[]>("readonly", (store) => store("messages").index("conversation").getAll(conversation));
  return (found ?? []).sort((one, other) => one.order - other.order);
}

export async function keepConversation(conversation: Conversation): Promise<void> {
  await run("readwrite", (store) => store("conversations").put(conversation));
}

export async function keepMessages(messages: Message[]): Promise<void> {
  await run("readwrite", (store) => {
    for (const message of messages) store("messages").put(message);
    return null;
  });
}

export async function dropMessages(messages: Message[]): Promise<void> {
  await run("readwrite", (store) => {
    for (const message of messages) store("messages").delete(message.id);
    return null;
  });
}

export async function dropConversation(id: string): Promise<void> {
  const messages = await messagesOf(id);
  await run("readwrite", (store) => {
    for (const message of messages) store("messages").delete(message.id);
    return store("conversations").delete(id);
  });
}

export async function dropAll(): Promise<void> {
  await run("readwrite", (store) => {
    store("messages").clear();
    return store("conversations").clear();
  });
}
