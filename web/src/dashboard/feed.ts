// The stream of states: kept open while the page is seen, opened again when it ends.

import { signal } from "@preact/signals";
import { ApiError, request } from "../shared/api.ts";
import { eventsOf } from "../shared/sse.ts";
import { type Arena, extended, type Point, type State } from "./model.ts";

const EVENTS = "admin/state/events";
const DELAYS_MS = [1000, 2000, 5000];
const STALE_MS = 3500;
/** A server ends a stream after a minute. One that ends sooner is not opened again at once. */
const SHORT_MS = 5000;

export const now = signal<State | null>(null);
export const before = signal<State | null>(null);
export const history = signal<Point[]>([]);
export const arena = signal<Arena | null>(null);
/** Why there is no news, or "". */
export const trouble = signal("");
/** True while what is shown is old. */
export const stale = signal(false);
let heard_ms = 0;
let stream: AbortController | null = null;

/** Follow the server for as long as the page is there. */
export async function follow(): Promise<void> {
  setInterval(() => (stale.value = now.value !== null && Date.now() - heard_ms > STALE_MS), 500);
  document.addEventListener("visibilitychange", () => document.hidden && stream?.abort());
  for (let failures = 0; ; ) {
    await visible();
    const begun_ms = Date.now();
    try {
      await read();
      failures = 0;
      if (Date.now() - begun_ms < SHORT_MS) await pause(DELAYS_MS[0] as number);
    } catch (error) {
      if (document.hidden) continue;
      trouble.value = error instanceof ApiError ? explained(error) : "The connection was cut.";
      await pause(DELAYS_MS[Math.min(failures++, DELAYS_MS.length - 1)] as number);
    }
  }
}

async function read(): Promise<void> {
  stream = new AbortController();
  const last = history.value.at(-1)?.time_s;
  const response = await request(last && arena.value ? `${EVENTS}?after=${last}` : EVENTS, undefined, stream.signal);
  for await (const events of eventsOf(response)) for (const event of events) take(JSON.parse(event) as State);
}

function take(state: State): void {
  before.value = now.value;
  history.value = extended(history.value, state);
  if (state.arena !== undefined) arena.value = state.arena;
  now.value = state;
  heard_ms = Date.now();
  trouble.value = "";
  stale.value = false;
}

function explained(error: ApiError): string {
  if (error.status === 404) return "This server was started without --enable-admin, so it shows nothing here.";
  return error.message;
}

function visible(): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", () => resolve(), { once: true }));
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
