// What is said to a screen reader, and shown of it.

import { useEffect } from "preact/hooks";
import { CloseIcon, WarningIcon } from "./icons.tsx";
import { alerted, spoken } from "./status.ts";

const SHOWN_MS = 8000;

export function Announcer() {
  useEffect(() => {
    if (!alerted.value) return;
    const timer = setTimeout(() => (alerted.value = ""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [alerted.value]);
  return (
    <>
      <div class="visually-hidden" role="status">{spoken.value}</div>
      <div class="toasts" role="alert">
        {alerted.value && (
          <p class="toast">
            <WarningIcon /><span>{alerted.value}</span>
            <button type="button" class="icon-button small" aria-label="Dismiss" onClick={() => (alerted.value = "")}><CloseIcon /></button>
          </p>
        )}
      </div>
    </>
  );
}
