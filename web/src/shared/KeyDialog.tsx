// Asks for the API key.

import { useState } from "preact/hooks";
import { keyAnswered, keyWanted, useKey } from "./api.ts";
import { Dialog } from "./Dialog.tsx";

export function KeyDialog() {
  return keyWanted.value === null ? null : <Form reason={keyWanted.value} />;
}

function Form({ reason }: { reason: string }) {
  const [key, setKey] = useState("");
  const [keep, setKeep] = useState(false);
  const submit = (event: Event) => {
    event.preventDefault();
    if (!key.trim()) return;
    useKey(key.trim(), keep);
    keyAnswered(true);
  };
  return (
    <Dialog title="API key" onClose={() => keyAnswered(false)}>
      <form class="key" onSubmit={submit}>
        <p>{reason ? "The server refused the key:" : "This server asks for a key. It is sent to this server only."}</p>
        {reason && <p class="ending failed" role="alert">{reason}</p>}
        <div class="field">
          <label for="key">Key</label>
          <input id="key" type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </div>
        <label class="check">
          <input type="checkbox" checked={keep} onChange={(event) => setKeep(event.currentTarget.checked)} />
          Keep it in this browser, not only in this tab
        </label>
        <div class="row end"><button type="submit" class="primary">Use this key</button></div>
      </form>
    </Dialog>
  );
}
