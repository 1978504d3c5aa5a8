// The figures of this second.

import type { ComponentChildren } from "preact";
import { before, history } from "./feed.ts";
import { count, NONE, percent, perSecond, seconds } from "./figures.ts";
import { type Point, rate, type State } from "./model.ts";

export function Tiles({ state }: { state: State }) {
  const { load, last_hour: hour } = state;
  const blocks = load.kv_blocks_held + load.kv_blocks_cached + load.kv_blocks_free;
  const recent = history.value.slice(-60);
  return (
    <section class="tiles" aria-label="Now">
      <Tile name="Tokens written" value={perSecond(rate(before.value, state, "generation_tokens"))} unit="/s" spark={recent.map((point) => each(point, point.generation_tokens))} hue={6}>
        {count(hour.generation_tokens)} in the last hour
      </Tile>
      <Tile name="Prompt tokens" value={perSecond(rate(before.value, state, "prompt_tokens"))} unit="/s" spark={recent.map((point) => each(point, point.prompt_tokens))} hue={7}>
        {percent(load.prefix_hit_tokens, load.prefix_query_tokens)} found in the prefix cache
      </Tile>
      <Tile name="First token" value={seconds(hour.ttft.p50_s)} spark={recent.map((point) => point.ttft_p50_s ?? null)} hue={5}>
        p95 {seconds(hour.ttft.p95_s)}, {count(hour.ttft.count)} requests
      </Tile>
      <Tile name="Between tokens" value={seconds(hour.itl.p50_s)} spark={recent.map((point) => point.itl_p50_s ?? null)} hue={8}>
        p95 {seconds(hour.itl.p95_s)}
      </Tile>
      <Tile name="Slots" value={`${load.sequences_running}`} unit={` of ${load.slots}`} meter={[[load.sequences_running / load.slots, "var(--hue-6)"]]}>
        {load.sequences_waiting ? <b class="warn">{count(load.sequences_waiting)} waiting</b> : "none waiting"}, {count(load.requests_in_flight)} in flight
      </Tile>
      <Tile name="KV blocks" value={percent(load.kv_blocks_held, blocks)} unit={blocks ? " held" : ""} meter={[[load.kv_blocks_held / blocks, "var(--hue-6)"], [load.kv_blocks_cached / blocks, "var(--hue-9)"]]}>
        {blocks ? `${percent(load.kv_blocks_cached, blocks)} cached of ${count(blocks)}, ${count(load.preemptions)} preempted` : NONE}
      </Tile>
      <Tile name="Images" value={`${load.images_decoding}`} unit=" being read">
        {load.images_waiting ? <b class="warn">{count(load.images_waiting)} waiting</b> : "none waiting"}
      </Tile>
    </section>
  );
}

interface Props {
  name: string;
  value: string;
  unit?: string;
  spark?: (number | null)[];
  hue?: number;
  /** Parts of the whole with their colours. */
  meter?: [number, string][];
  children: ComponentChildren;
}

function Tile({ name, value, unit = "", spark, hue = 6, meter, children }: Props) {
  return (
    <div class="tile">
      <h2>{name}</h2>
      <p class="value">{value}{value !== NONE && <small>{unit}</small>}</p>
      {spark && <Spark values={spark} hue={hue} />}
      {meter && (
        <div class="meter" aria-hidden="true">
          {meter.map(([part, color]) => <i style={{ width: `${100 * Math.min(1, part || 0)}%`, background: color }} />)}
        </div>
      )}
      <p class="hint">{children}</p>
    </div>
  );
}

function Spark({ values, hue }: { values: (number | null)[]; hue: number }) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 1e-9);
  const points = values.map((value, index) => `${(100 * index) / Math.max(1, values.length - 1)},${27 - (24 * (value ?? 0)) / top}`);
  return (
    <svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true" style={{ color: `var(--hue-${hue})` }}>
      {values.length > 1 && <polygon points={`0,28 ${points.join(" ")} 100,28`} fill="currentColor" opacity="0.14" />}
      {values.length > 1 && <polyline points={points.join(" ")} fill="none" stroke="currentColor" stroke-width="1.6" vector-effect="non-scaling-stroke" stroke-linejoin="round" />}
    </svg>
  );
}

function each(point: Point, tokens: number | undefined): number {
  return (tokens ?? 0) / point.seconds;
}
