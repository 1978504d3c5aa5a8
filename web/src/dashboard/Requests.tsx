// The requests that the server works on now, oldest first.

import { Card, Scrolled } from "./Card.tsx";
import { age, count, NONE, seconds } from "./figures.ts";
import { inStates, type Request, type RequestStage, type State } from "./model.ts";

/** What a dot's colour says: work on it goes on, or it waits for something. */
const KINDS: Record<RequestStage, string> = { reading: "busy", waiting: "late", encoding: "busy", queued: "late", prefill: "busy", decoding: "good" };

export function Requests({ state }: { state: State }) {
  const { requests, load } = state;
  const hidden = Math.max(0, load.requests_in_flight - requests.length);
  return (
    <Card id="requests" title="Requests in flight" note={requests.length > 0 && <>{inStates(requests)}{hidden > 0 && `; ${count(hidden)} more not shown`}</>}>
      {requests.length === 0 ? (
        <p class="hint">{hidden ? "Requests are being received." : "None now."}</p>
      ) : (
        <Scrolled label="Each request" class="tall">
          <table>
            <thead>
              <tr>
                <th scope="col">Request</th><th scope="col">State</th><th scope="col" class="number">Age</th><th scope="col" class="number">Prompt tokens</th>
                <th scope="col" class="number">Output tokens</th><th scope="col" class="number">Pictures</th>
              </tr>
            </thead>
            <tbody>{requests.map((request) => <Row key={request.id} request={request} />)}</tbody>
          </table>
        </Scrolled>
      )}
    </Card>
  );
}

function Row({ request }: { request: Request }) {
  const { state, age_s } = request;
  return (
    <tr>
      <th scope="row" class="id"><bdi>{request.id}</bdi></th>
      <td><span class={`status ${state ? KINDS[state] : ""}`}><i aria-hidden="true" />{state ?? "unknown"}</span></td>
      <td class="number">{age_s < 60 ? seconds(age_s) : age(age_s)}</td>
      <td class="number">{request.prompt_tokens ? count(request.prompt_tokens) : NONE}</td>
      <td class="number">{count(request.output_tokens)}</td>
      <td class="number">{request.images || NONE}</td>
    </tr>
  );
}
