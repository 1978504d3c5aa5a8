// Whether answers are shown when they are complete, and not while they arrive.

import { effect, signal } from "@preact/signals";

const KEY = "mmserve.whole";

export const whole = signal(stored());

effect(() => {
  try {
    localStorage.setItem(KEY, String(whole.value));
  } catch {
    // The choice then lasts until the page is closed.
  }
});

function stored(): boolean {
  try {
    return localStorage.getItem(KEY) === "true";
  } catch {
    return false;
  }
}
