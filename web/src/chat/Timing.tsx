// Under an answer: how fast it was, and where its time went.

import { duration } from "../shared/format.ts";
import type { Message } from "./model.ts";
import { cachedOf, partsOf, tokensPerSecond } from "./timing.ts";

export function Timing({ message }: { message: Message }) {
  const { usage, timing } = message;
  if (!usage) return null;
  const rate = tokensPerSecond(message);
  return (
    <div class="timing">
      <ul class="figures" aria-label="Figures">
        {timing && <li title="Time to the first token">TTFT <b>{duration(timing.ttft_ms)}</b></li>}
        {rate !== null && <li><b>{rate.toFixed(rate < 10 ? 1 : 0)}</b> tokens/s</li>}
        <li><b>{usage.completion_tokens.toLocaleString("en")}</b> {usage.completion_tokens === 1 ? "token" : "tokens"}</li>
        <li title="Tokens of the prompt that were found in the prefix cache">
          <b>{cachedOf(usage).toLocaleString("en")}</b> of {usage.prompt_tokens.toLocaleString("en")} cached
        </li>
        {message.finish === "length" && <li class="warn">cut at the length limit</li>}
      </ul>
      {timing && <StageBar message={message} />}
    </div>
  );
}

function StageBar({ message }: { message: Message }) {
  const { timing, model } = message;
  if (!timing) return null;
  const parts = partsOf(timing.stages_ms);
  const sum = parts.reduce((total, part) => total + part.ms, 0) || 1;
  return (
    <details class="stages">
      <summary aria-label={`Where ${duration(timing.total_ms)} went`}>
        <span class="bar" aria-hidden="true">
          {parts.map((part) => <span class={`stage stage-${part.name}`} style={{ flexGrow: part.ms / sum }} title={`${part.name} ${duration(part.ms)}`} />)}
        </span>
        <span class="total">{duration(timing.total_ms)}</span>
      </summary>
      <table>
        <caption>Where the time went{model ? `, ${model}` : ""}</caption>
        <tbody>
          {parts.map((part) => (
            <tr>
              <th scope="row"><span class={`swatch stage-${part.name}`} aria-hidden="true" />{part.name}</th>
              <td>{part.meaning}</td>
              <td class="number">{duration(part.ms)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="note">Several pictures are read and hashed at once, so the sums of their times may exceed the whole.</p>
    </details>
  );
}
