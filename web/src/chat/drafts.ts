// What was written and not sent, for each conversation. It outlives the page, where the browser stores anything at all.

const PREFIX = "mmserve.draft.";

export function draftOf(conversation: string): string {
  try {
    return localStorage.getItem(PREFIX + conversation) ?? "";
  } catch {
    return "";
  }
}

export function keepDraft(conversation: string, text: string): void {
  try {
    if (text) localStorage.setItem(PREFIX + conversation, text);
    else localStorage.removeItem(PREFIX + conversation);
  } catch {
    // Then a draft lasts until the page is closed.
  }
}

export function dropDrafts(): void {
  try {
    for (const key of Object.keys(localStorage)) {
      if (key.startsWith(PREFIX)) localStorage.removeItem(key);
    }
  } catch {
    // Then there are none.
  }
}
