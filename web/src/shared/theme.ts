// Light, dark, or as the system has it.

import { effect, signal } from "@preact/signals";

export type Theme = "auto" | "light" | "dark";
const KEY = "mmserve.theme";

export const theme = signal<Theme>(stored());

effect(() => {
  const { dataset } = document.documentElement;
  if (theme.value === "auto") delete dataset.theme;
  else dataset.theme = theme.value;
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // The choice then lasts until the page is closed.
  }
});

/** The theme after this one, for a button. */
export function nextTheme(): void {
  theme.value = theme.value === "auto" ? "light" : theme.value === "light" ? "dark" : "auto";
}

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "auto";
  } catch {
    return "auto";
  }
}
