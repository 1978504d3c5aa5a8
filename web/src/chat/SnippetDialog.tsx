// The request of an answer as code.

import { signal } from "@preact/signals";
import type { TargetedKeyboardEvent } from "preact";
import { useEffect, useState } from "preact/hooks";
import { apiKey } from "../shared/api.ts";
import { copy } from "../shared/clipboard.ts";
import { Dialog } from "../shared/Dialog.tsx";
import { highlighted } from "../shared/highlight.ts";
import { CheckIcon, CopyIcon } from "../shared/icons.tsx";
import type { Message } from "./model.ts";
import { curl, python } from "./snippets.ts";
import { current, messages, server } from "./state.ts";

/** The answer whose request is shown. */
export const snippetOf = signal<Message | null>(null);

const FORMS = { curl: { title: "curl", language: "bash", make: curl }, python: { title: "Python", language: "python", make: python } };
const NAMES = Object.keys(FORMS) as (keyof typeof FORMS)[];

export function SnippetDialog() {
  const answer = snippetOf.value;
  return answer && <Snippet answer={answer} />;
}

function Snippet({ answer }: { answer: Message }) {
  const [form, setForm] = useState<keyof typeof FORMS>("curl");
  const [text, setText] = useState("");
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    const asked = messages.value.filter((one) => one.order < answer.order);
    const options = current.value?.options;
    const base = new URL("./", location.href).href;
    if (options) void FORMS[form].make(base, server.value?.model ?? "", options, asked, Boolean(apiKey.value)).then(setText);
    setCopied(false);
  }, [form]);
  /** Arrow keys go from tab to tab; the tabulator key leaves the tabs. */
  const onKeyDown = (event: TargetedKeyboardEvent<HTMLDivElement>) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const next = (NAMES.indexOf(form) + step + NAMES.length) % NAMES.length;
    setForm(NAMES[next]!);
    (event.currentTarget.children[next] as HTMLElement).focus();
  };
  return (
    <Dialog title="This request as code" onClose={() => (snippetOf.value = null)}>
      <div class="tabs" role="tablist" onKeyDown={onKeyDown}>
        {NAMES.map((name) => (
          <button type="button" role="tab" aria-selected={form === name} tabIndex={form === name ? 0 : -1} onClick={() => setForm(name)}>
            {FORMS[name].title}
          </button>
        ))}
      </div>
      <figure class="code snippet" role="tabpanel" aria-label={FORMS[form].title}>
        <pre tabIndex={0}><code>{highlighted(text, FORMS[form].language)}</code></pre>
      </figure>
      <div class="row end">
        <button type="button" class="primary" onClick={async () => setCopied(await copy(text))}>
          {copied ? <CheckIcon /> : <CopyIcon />}
          {copied ? "Copied" : "Copy"}
        </button>
      </div>
    </Dialog>
  );
}
