// Both paths of allocation side by side, and the switch between them.

import { useState } from "preact/hooks";
import { json } from "../shared/api.ts";
import { Dialog } from "../shared/Dialog.tsx";
import { plural } from "../shared/format.ts";
import { say } from "../shared/status.ts";
import { Card, Scrolled } from "./Card.tsx";
import { now } from "./feed.ts";
import { count, percent, seconds, signed } from "./figures.ts";
import { type Arm, difference, type State } from "./model.ts";

const CHOICES = [0, 5, 25, 50, 100];
const FIELD = "concurrent_alloc_fraction";

export function Arms({ state }: { state: State }) {
  const { v1, v2 } = state.last_hour.arms;
  const share = Math.round(100 * state.alloc.concurrent_alloc_fraction);
  if (!v1 || !v2) return null;
  const images = (arm: Arm) => `${count(arm.images)}${arm.images ? ` (${percent(arm.cached_images, arm.images)} cached)` : ""}`;
  return (
    <Card id="arms" title="Paths of allocation" note="last hour">
      <div class="split" aria-hidden="true"><i style={{ width: `${100 - share}%` }} /><i style={{ width: `${share}%` }} /></div>
      <p class="shares"><span>v1: {100 - share} % of requests</span><span>v2: {share} % of requests</span></p>
      <Scrolled label="Both paths">
        <table>
          <thead><tr><th scope="col"><span class="visually-hidden">Figure</span></th><th scope="col" class="number">v1</th><th scope="col" class="number">v2</th><th scope="col" class="number">v2 is</th></tr></thead>
          <tbody>
            <tr><th scope="row">requests</th><td class="number">{count(v1.requests)}</td><td class="number">{count(v2.requests)}</td><td /></tr>
            <tr><th scope="row">images</th><td class="number">{images(v1)}</td><td class="number">{images(v2)}</td><td /></tr>
            <tr><th scope="row">waiting now</th><td class="number">{count(v1.waiting)}</td><td class="number">{count(v2.waiting)}</td><td /></tr>
            {Object.keys(v1.stages).map((stage) => {
              const [one, two] = [v1.stages[stage], v2.stages[stage]];
              const part = difference(one, two);
              return (
                <tr>
                  <th scope="row">{stage} <small>p50 / p95</small></th>
                  <td class="number">{seconds(one?.p50_s)} / {seconds(one?.p95_s)}</td>
                  <td class="number">{seconds(two?.p50_s)} / {seconds(two?.p95_s)}</td>
                  <td class={`number ${part === null ? "" : part > 0.05 ? "worse" : part < -0.05 ? "better" : ""}`}>{part === null ? <span title="Fewer than 30 values">–</span> : signed(part)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scrolled>
      {state.alloc.has_v2 ? <Switch share={share} /> : <p class="hint">The server was started with --no-enable-concurrent-alloc: there is no v2.</p>}
    </Card>
  );
}

function Switch({ share }: { share: number }) {
  const [wanted, setWanted] = useState<number | null>(null);
  return (
    <>
      <div class="row">
        <span class="label">Share of v2</span>
        <div class="segments" role="group" aria-label="Share of v2">
          {CHOICES.map((choice) => <button type="button" aria-pressed={choice === share} onClick={() => choice !== share && setWanted(choice)}>{choice} %</button>)}
        </div>
      </div>
      {wanted !== null && <Confirm share={share} wanted={wanted} onClose={() => setWanted(null)} />}
    </>
  );
}

function Confirm({ share, wanted, onClose }: { share: number; wanted: number; onClose: () => void }) {
  const [error, setError] = useState("");
  const apply = async () => {
    try {
      const alloc = await json<{ [FIELD]: number }>("admin/alloc", { [FIELD]: wanted / 100 });
      if (now.value) now.value = { ...now.value, alloc: { ...now.value.alloc, ...alloc } };
      say(`v2 now allocates for ${wanted} % of the requests.`);
      onClose();
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
    }
  };
  const running = now.value?.load.requests_in_flight ?? 0;
  return (
    <Dialog title="Change the share of v2?" onClose={onClose}>
      <p>
        From now on v2 allocates for <b>{wanted} %</b> of the new requests with images, at every HTTP worker. It is {share} % now.
        {running ? ` The ${plural(running, "request")} in flight keep${running === 1 ? "s its" : " their"} path.` : ""} Cached images stay. After a restart the server begins with --concurrent-alloc-fraction again.
      </p>
      {error && <p class="ending failed" role="alert">{error}</p>}
      <div class="row end">
        <button type="button" class="quiet" onClick={onClose}>Cancel</button>
        <button type="button" class="primary" onClick={() => void apply()}>Use v2 for {wanted} %</button>
      </div>
    </Dialog>
  );
}
