// The processes of the server.

import { bytes } from "../shared/format.ts";
import { Card, Scrolled } from "./Card.tsx";
import { age, NONE, seconds } from "./figures.ts";
import type { Process, State } from "./model.ts";

/** An older heartbeat is late: each process sends one a second. */
const LATE_S = 5;

export function Processes({ state }: { state: State }) {
  const all = state.processes;
  const total = all.reduce((sum, process) => sum + (process.pss_bytes ?? 0), 0);
  const restarts = all.reduce((sum, process) => sum + process.restarts, 0);
  return (
    <Card id="processes" title="Processes" note={<>{all.length} processes, {bytes(total)}, {restarts || "no"} restart{restarts === 1 ? "" : "s"}</>}>
      <Scrolled label="Each process">
        <table>
          <thead>
            <tr>
              <th scope="col">Process</th><th scope="col">State</th><th scope="col" class="number">PID</th><th scope="col" class="number">Up for</th><th scope="col" class="number">Restarts</th>
              <th scope="col" class="number">Heartbeat</th><th scope="col" class="number">Memory</th><th scope="col" class="number">with shared</th>
            </tr>
          </thead>
          <tbody>{all.map((process) => <Row key={process.name} process={process} />)}</tbody>
        </table>
      </Scrolled>
    </Card>
  );
}

function Row({ process }: { process: Process }) {
  const late = process.heartbeat_age_s !== null && process.heartbeat_age_s > LATE_S;
  const kind = process.state !== "ready" ? "bad" : late ? "late" : process.busy ? "busy" : "good";
  return (
    <tr>
      <th scope="row"><bdi>{process.title}</bdi></th>
      <td><span class={`status ${kind}`}><i aria-hidden="true" />{process.state === "ready" ? (late ? "silent" : process.busy ? "busy" : "ready") : process.state}</span></td>
      <td class="number">{process.pid || NONE}</td>
      <td class="number">{process.pid ? age(process.uptime_s) : NONE}</td>
      <td class="number">{process.restarts ? <b class="warn">{process.restarts}</b> : 0}</td>
      <td class={late ? "number worse" : "number"}>{process.heartbeat_age_s === null ? NONE : late ? age(process.heartbeat_age_s) : seconds(process.heartbeat_age_s)}</td>
      <td class="number">{process.pss_bytes === null ? NONE : bytes(process.pss_bytes)}</td>
      <td class="number">{process.rss_bytes === null ? NONE : bytes(process.rss_bytes)}</td>
    </tr>
  );
}
