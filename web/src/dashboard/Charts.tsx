// Tokens a second and latencies over the last minutes, up to an hour.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { Card, useWidth } from "./Card.tsx";
import { history, now } from "./feed.ts";
import { perSecond, seconds } from "./figures.ts";
import { line, type Point, roundUp } from "./model.ts";

const SPANS = { "5 min": 300, "15 min": 900, "1 h": 3600 };
const span_s = signal(900);

interface Series {
  name: string;
  hue: number;
  value: (point: Point) => number | undefined;
  dashed?: string;
}

const TOKENS: Series[] = [
  { name: "written", hue: 6, value: (point) => (point.generation_tokens ?? 0) / point.seconds },
  { name: "prompt", hue: 8, value: (point) => (point.prompt_tokens ?? 0) / point.seconds, dashed: "5 3" },
];
const TTFT: Series[] = [
  { name: "p50", hue: 6, value: (point) => point.ttft_p50_s },
  { name: "p95", hue: 4, value: (point) => point.ttft_p95_s, dashed: "5 3" },
  { name: "p99", hue: 2, value: (point) => point.ttft_p99_s, dashed: "1.5 3" },
];
const ITL: Series[] = [
  { name: "p50", hue: 6, value: (point) => point.itl_p50_s },
  { name: "p95", hue: 4, value: (point) => point.itl_p95_s, dashed: "5 3" },
  { name: "p99", hue: 2, value: (point) => point.itl_p99_s, dashed: "1.5 3" },
];

export function Charts() {
  return (
    <Card id="charts" title="Last hour" note={<Spans />}>
      <div class="charts">
        <Chart title="Tokens a second" series={TOKENS} shown={perSecond} />
        <Chart title="Time to first token" series={TTFT} shown={seconds} />
        <Chart title="Time between tokens" series={ITL} shown={seconds} />
      </div>
    </Card>
  );
}

function Spans() {
  return (
    <div class="segments" role="group" aria-label="Time shown">
      {Object.entries(SPANS).map(([name, length_s]) => (
        <button type="button" aria-pressed={span_s.value === length_s} onClick={() => (span_s.value = length_s)}>{name}</button>
      ))}
    </div>
  );
}

const HEIGHT = 150;
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;

interface ChartProps {
  title: string;
  series: Series[];
  shown: (value: number | null) => string;
}

function Chart({ title, series, shown }: ChartProps) {
  const { element, width } = useWidth<HTMLDivElement>();
  const [pointed, setPointed] = useState<number | null>(null);
  const end_s = now.value?.time_s ?? 0;
  const points = history.value.filter((point) => point.time_s >= end_s - span_s.value);
  const top = roundUp(Math.max(0, ...points.flatMap((point) => series.map((each) => each.value(point) ?? 0))));
  const x = (time_s: number) => LEFT + (1 - (end_s - time_s) / span_s.value) * (width - LEFT - 4);
  const y = (value: number) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const chosen = pointed === null ? undefined : points.reduce<Point | undefined>((best, point) => (best && Math.abs(x(best.time_s) - pointed) <= Math.abs(x(point.time_s) - pointed) ? best : point), undefined);
  const last = points.at(-1);
  const values = (point: Point | undefined) => series.map((each) => ({ ...each, text: shown((point && each.value(point)) ?? null) }));
  const summary = `${title}. Latest: ${values(last).map((each) => `${each.name} ${each.text}`).join(", ")}.`;
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <span class="legend">
          {values(chosen ?? last).map((each) => <span><Stroke series={each} />{each.name} <b>{each.text}</b></span>)}
        </span>
      </figcaption>
      <div ref={element} class="plot">
        {width > 0 && (
          <svg width={width} height={HEIGHT} role="img" aria-label={summary} onPointerMove={(event) => setPointed(event.offsetX)} onPointerLeave={() => setPointed(null)}>
            {[0, 0.5, 1].map((part) => (
              <g class="tick">
                <line x1={LEFT} x2={width} y1={y(part * top)} y2={y(part * top)} />
                <text x={LEFT - 8} y={y(part * top) + 4} text-anchor="end">{part ? shown(part * top) : "0"}</text>
              </g>
            ))}
            {[1, 0.5, 0].map((part) => (
              <text class="time" x={LEFT + (1 - part) * (width - LEFT - 4)} y={HEIGHT - 4} text-anchor={part === 1 ? "start" : part ? "middle" : "end"}>{part ? `−${(part * span_s.value) / 60} min` : "now"}</text>
            ))}
            {[...series].reverse().map((each) => <Drawn series={each} points={points} x={x} y={y} />)}
            {chosen && <line class="pointer" x1={x(chosen.time_s)} x2={x(chosen.time_s)} y1={TOP} y2={HEIGHT - BOTTOM} />}
            {!points.some((point) => series.some((each) => each.value(point) !== undefined)) && <text class="nothing" x={LEFT + (width - LEFT) / 2} y={HEIGHT / 2} text-anchor="middle">nothing measured yet</text>}
          </svg>
        )}
      </div>
    </figure>
  );
}

function Drawn({ series, points, x, y }: { series: Series; points: Point[]; x: (time_s: number) => number; y: (value: number) => number }) {
  const { path, dots } = line(points, series.value, x, y);
  return (
    <g style={{ color: `var(--hue-${series.hue})` }}>
      <path d={path} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round" stroke-dasharray={series.dashed} />
      {dots.map(([cx, cy]) => <circle cx={cx} cy={cy} r="2" fill="currentColor" />)}
    </g>
  );
}

function Stroke({ series }: { series: Series }) {
  return (
    <svg width="18" height="8" aria-hidden="true" style={{ color: `var(--hue-${series.hue})` }}>
      <line x1="0" x2="18" y1="4" y2="4" stroke="currentColor" stroke-width="2.2" stroke-dasharray={series.dashed} />
    </svg>
  );
}
