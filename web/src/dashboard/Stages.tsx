// Where the time of the last hour went.

import { Card, Scrolled } from "./Card.tsx";
import { count, seconds } from "./figures.ts";
import type { LastHour } from "./model.ts";

const NAMES: Record<string, [string, number]> = {
  visual_queue: ["image: wait for the visual server", 1],
  image_decode: ["image: decode", 3],
  encode: ["image: vision tower, one batch", 5],
  queue: ["wait for a slot", 1],
  prefill: ["prefill", 7],
  decode: ["decode", 9],
};

export function Stages({ hour }: { hour: LastHour }) {
  const longest = Math.max(1e-9, ...Object.values(hour.stages).map((stage) => stage.p95_s ?? 0));
  const width = (value: number | null) => `${Math.max(value ? 1 : 0, (100 * (value ?? 0)) / longest)}%`;
  return (
    <Card id="stages" title="Stages" note="last hour, half and 95 of 100 are faster">
      <Scrolled label="Stages of images and sequences">
        <table class="stages">
          <thead><tr><th scope="col">Stage</th><th scope="col" class="number">Count</th><th scope="col" class="number">p50</th><th scope="col" class="number">p95</th></tr></thead>
          <tbody>
            {Object.entries(hour.stages).map(([name, stage]) => {
              const [text, hue] = NAMES[name] ?? [name, 1];
              return (
                <tr>
                  <th scope="row">{text}<span class="bars" aria-hidden="true" style={{ color: `var(--hue-${hue})` }}><i style={{ width: width(stage.p95_s) }} /><i style={{ width: width(stage.p50_s) }} /></span></th>
                  <td class="number">{count(stage.count)}</td><td class="number">{seconds(stage.p50_s)}</td><td class="number">{seconds(stage.p95_s)}</td>
                </tr>
              );
            })}
            <tr><th scope="row">whole request</th><td class="number">{count(hour.e2e.count)}</td><td class="number">{seconds(hour.e2e.p50_s)}</td><td class="number">{seconds(hour.e2e.p95_s)}</td></tr>
          </tbody>
        </table>
      </Scrolled>
    </Card>
  );
}
