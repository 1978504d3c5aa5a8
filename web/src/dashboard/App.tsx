// The dashboard: what a server does now and has done in the last hour.

import type { ComponentChildren } from "preact";
import { Announcer } from "../shared/Announcer.tsx";
import { Mark, WarningIcon } from "../shared/icons.tsx";
import { keyWanted } from "../shared/api.ts";
import { KeyDialog } from "../shared/KeyDialog.tsx";
import { ThemeButton } from "../shared/ThemeButton.tsx";
import { Arms } from "./Arms.tsx";
import { ArenaCard } from "./Arena.tsx";
import { Charts } from "./Charts.tsx";
import { now, stale, trouble } from "./feed.ts";
import { age } from "./figures.ts";
import { Processes } from "./Processes.tsx";
import { Requests } from "./Requests.tsx";
import { Stages } from "./Stages.tsx";
import { Tiles } from "./Tiles.tsx";

export function App() {
  const state = now.value;
  return (
    <>
      <Header />
      <main class={stale.value ? "stale" : ""}>
        <Notice />
        {state && (
          <>
            <Tiles state={state} />
            <Charts />
            <Requests state={state} />
            <ArenaCard />
            <div class="pair">
              <Arms state={state} />
              <Stages hour={state.last_hour} />
            </div>
            <Processes state={state} />
          </>
        )}
      </main>
      <KeyDialog />
      <Announcer />
    </>
  );
}

function Header() {
  const state = now.value;
  return (
    <header class="bar">
      <Mark />
      <h1>Dashboard</h1>
      {state && <span class="model" title="Served model"><bdi>{state.model}</bdi></span>}
      <Status />
      <span class="spring" />
      {state && <span class="hint only-wide">mmserve {state.version}, up for {age(state.uptime_s)}</span>}
      <a class="link" href="./">Chat</a>
      <ThemeButton />
    </header>
  );
}

function Status() {
  const state = now.value;
  const [kind, text] = !state ? ["off", trouble.value ? "no answer" : "connecting"] : stale.value ? ["off", "connection lost"] : state.reasons.length ? ["bad", state.phase] : ["good", state.phase];
  return <span class={`status ${kind}`} role="status"><i aria-hidden="true" />{text}</span>;
}

/** What is wrong, above everything else. */
function Notice() {
  const state = now.value;
  if (trouble.value && (!state || stale.value)) {
    return (
      <Warning>
        {trouble.value} {state ? "The figures below are old. Connecting again." : ""}
        {!state && !keyWanted.value && <button type="button" class="quiet small" onClick={() => (keyWanted.value = "")}>Enter an API key</button>}
      </Warning>
    );
  }
  if (stale.value) return <Warning>No news from the server. The figures below are old.</Warning>;
  if (!state) return <p class="hint center">Connecting to the server.</p>;
  const wrong = [...state.reasons, ...(state.detail && state.reasons.length ? [state.detail] : []), ...state.missing.map((name) => `no answer about ${name}`)];
  return wrong.length > 0 && <Warning>{wrong.join("; ")}</Warning>;
}

function Warning({ children }: { children: ComponentChildren }) {
  return <div class="warning" role="alert"><WarningIcon /><span>{children}</span></div>;
}
