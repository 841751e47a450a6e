// Chart of the snapshot history: the duration of each snapshot with its parts, and its size.
import { h, svg } from "./dom.js";
import { milliseconds, size } from "./format.js";

const PARTS = [
  ["alignment_ms", "alignment", "waiting for barriers"],
  ["sync_ms", "sync", "copying state while records wait"],
  ["async_ms", "async", "writing while records flow"],
];
const NEWEST = 40;
const FEWEST = 16;
const HEIGHT = 150;
const SIZE_HEIGHT = 44;
const LEFT = 58;
const TOP = 8;

/** The next round number that is not less than `value`. */
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((n) => n * unit).find((n) => n >= value);
}

/** The parts of a snapshot's duration: the slowest subtask's parts, limited to the total, and the rest. */
export function partsOf(snapshot) {
  let left = snapshot.duration_ms ?? 0;
  const parts = PARTS.map(([field, name]) => {
    const ms = Math.min(snapshot[field] ?? 0, left);
    left -= ms;
    return [name, ms];
  });
  return [...parts, ["rest", left]];
}

export function chart(history) {
  const shown = history.filter((s) => s.status !== "pending").slice(0, NEWEST).reverse();
  if (shown.length < 2) return null;
  const told = h("p", { class: "told" });
  const box = h("div", { class: "chart" });
  const tell = (s) => told.replaceChildren(...describe(s));
  const draw = () => box.replaceChildren(picture(shown, Math.max(box.clientWidth, 280), tell));
  new ResizeObserver(draw).observe(box);
  tell(shown.at(-1));
  return h(
    "figure",
    {},
    h(
      "ul",
      { class: "legend" },
      PARTS.map(([, name, why]) => h("li", { class: name, title: why }, name)),
      h("li", { class: "rest", title: "remaining time from trigger to completion" }, "other"),
      h("li", { class: "size" }, "size"),
      shown.some((s) => s.status === "aborted") ? h("li", { class: "aborted" }, "aborted") : null,
    ),
    box,
    told,
  );
}

function describe(s) {
  const words = [h("strong", {}, `${s.kind} ${s.id}`)];
  if (s.status === "aborted") return [...words, ` aborted${s.reason ? `: ${s.reason}` : ""}`];
  const parts = PARTS.map(([field, name]) => `${name} ${milliseconds(s[field] ?? 0)}`).join(", ");
  return [...words, ` took ${milliseconds(s.duration_ms) ?? "–"} (slowest subtask: ${parts}), ${size(s.bytes) ?? "–"}`];
}

function picture(shown, width, tell) {
  const places = Math.max(shown.length, FEWEST);
  const step = (width - LEFT - 4) / places;
  const bar = Math.max(3, step - Math.max(2, step * 0.25));
  const longest = roundUp(Math.max(...shown.map((s) => s.duration_ms ?? 0), 1));
  const largest = roundUp(Math.max(...shown.map((s) => s.bytes ?? 0), 1));
  const y = (ms) => TOP + HEIGHT - (HEIGHT * ms) / longest;
  const bottom = TOP + HEIGHT;
  const sizeTop = bottom + 26;
  const sizeY = (bytes) => sizeTop + SIZE_HEIGHT - (SIZE_HEIGHT * bytes) / largest;
  const x = (i) => LEFT + (places - shown.length + i) * step;
  const grid = [0, 0.5, 1].map((f) => [
    svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(longest * f), y2: y(longest * f) }),
    svg("text", { class: "axis", x: LEFT - 8, y: y(longest * f) + 4, "text-anchor": "end" }, milliseconds(longest * f)),
  ]);
  const bars = shown.map((s, i) => {
    const rects = [];
    if (s.status === "aborted") {
      rects.push(svg("rect", { class: "aborted", x: x(i), y: bottom - 6, width: bar, height: 6, rx: 1 }));
    } else {
      let base = 0;
      for (const [name, ms] of partsOf(s)) {
        const height = (HEIGHT * ms) / longest;
        if (height > 0.2) rects.push(svg("rect", { class: name, x: x(i), y: y(base + ms), width: bar, height }));
        base += ms;
      }
    }
    if (s.kind !== "checkpoint") {
      rects.push(svg("circle", { class: "special", cx: x(i) + bar / 2, cy: y(s.duration_ms ?? 0) - 5, r: 2.5 }));
    }
    const on = () => tell(s);
    return svg(
      "g",
      { class: "bar", tabindex: 0, role: "img", "aria-label": describe(s).map((w) => w.textContent ?? w).join(""), onpointerenter: on, onfocus: on, onclick: on },
      svg("rect", { class: "hit", x: x(i) - (step - bar) / 2, y: 0, width: step, height: sizeTop + SIZE_HEIGHT }),
      rects,
    );
  });
  const sized = shown.map((s, i) => [s, x(i) + bar / 2]).filter(([s]) => s.bytes !== null && s.status === "completed");
  const line = sized.map(([s, at], i) => `${i ? "L" : "M"}${at.toFixed(1)} ${sizeY(s.bytes).toFixed(1)}`).join("");
  const every = Math.ceil(60 / step);
  const ids = shown
    .map((s, i) => [s, i])
    .filter(([, i]) => (shown.length - 1 - i) % every === 0)
    .map(([s, i]) => svg("text", { class: "axis", x: x(i) + bar / 2, y: bottom + 15, "text-anchor": "middle" }, `#${s.id}`));
  return svg(
    "svg",
    { width, height: sizeTop + SIZE_HEIGHT + 6, role: "group", "aria-label": `Duration and size of the newest ${shown.length} snapshots` },
    grid,
    svg("text", { class: "axis", x: LEFT - 8, y: sizeTop + 8, "text-anchor": "end" }, size(largest)),
    svg("line", { class: "grid", x1: LEFT, x2: width, y1: sizeTop + SIZE_HEIGHT, y2: sizeTop + SIZE_HEIGHT }),
    svg("path", { class: "size", d: line || "M0 0" }),
    sized.map(([s, at]) => svg("circle", { class: "size", cx: at, cy: sizeY(s.bytes), r: 1.8 })),
    ids,
    bars,
  );
}
