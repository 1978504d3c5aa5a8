// What a screen reader is told: whole sentences, not each token.

import { signal } from "@preact/signals";

export const spoken = signal("");
export const alerted = signal("");

/** Said when the reader has finished its sentence. */
export function say(sentence: string): void {
  spoken.value = spoken.value === sentence ? `${sentence} ` : sentence;
}

/** Said at once, and shown for a while. */
export function alert(sentence: string): void {
  alerted.value = sentence;
}
