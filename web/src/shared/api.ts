// Requests to the server that sent the page, with the API key if it wants one.

import { signal } from "@preact/signals";

const KEY = "mmserve.key";

/** Functions: a browser that keeps nothing refuses to name them. */
const STORAGES = [() => sessionStorage, () => localStorage];

export const apiKey = signal(STORAGES.map(read).find(Boolean) ?? "");
/** Why a key is asked for, or null: nobody is asked. */
export const keyWanted = signal<string | null>(null);
let waiting: ((given: boolean) => void)[] = [];

/** An error as the server names it. Status 0: no answer came. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly kind = "",
    readonly param: string | null = null,
  ) {
    super(message);
  }
}

/** Keep the key for this tab, or for this browser. An empty one is forgotten. */
export function useKey(key: string, keep: boolean): void {
  apiKey.value = key;
  for (const [index, storage] of STORAGES.entries()) {
    try {
      storage().removeItem(KEY);
      if (key && keep === (index === 1)) storage().setItem(KEY, key);
    } catch {
      // Storage is refused or full: the key is known until the page is closed.
    }
  }
}

/** The answer of whoever was asked for a key: true: a key was given. */
export function keyAnswered(given: boolean): void {
  keyWanted.value = null;
  const all = waiting;
  waiting = [];
  for (const resolve of all) resolve(given);
}

function askForKey(reason: string): Promise<boolean> {
  keyWanted.value = reason;
  return new Promise((resolve) => waiting.push(resolve));
}

/** GET without ``body``, else POST of JSON. Throws ApiError, or AbortError. Asks for a key when the server does. */
export async function request(path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  for (;;) {
    const sent = apiKey.value;
    const response = await send(path, sent, body, signal);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (response.status !== 401) throw error;
    // Another request may have been told a key since this one was sent.
    if (apiKey.value === sent && !(await askForKey(sent ? error.message : ""))) throw error;
  }
}

export async function json<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return (await (await request(path, body, signal)).json()) as T;
}

async function send(path: string, key: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {};
  const init: RequestInit = { headers, ...(signal ? { signal } : {}) };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    init.method = "POST";
    init.body = JSON.stringify(body);
  }
  try {
    return await fetch(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it running?");
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  return errorIn(text, response.status) ?? new ApiError(response.status, text.slice(0, 500) || response.statusText);
}

/** The error in a body or an event, in the form of OpenAI's API; null if it holds none. */
export function errorIn(text: string, status: number): ApiError | null {
  try {
    const { error } = JSON.parse(text);
    if (typeof error?.message !== "string") return null;
    return new ApiError(status, error.message, String(error.code ?? error.type ?? ""), error.param ?? null);
  } catch {
    return null;
  }
}

function read(storage: () => Storage): string | null {
  try {
    return storage().getItem(KEY);
  } catch {
    return null;
  }
}
