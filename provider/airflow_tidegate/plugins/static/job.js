// One job.
import { button } from "./actions.js";
import { chart } from "./chart.js";
import { card, h, Section, table } from "./dom.js";
import { badge, count, duration, eventMinute, eventTime, milliseconds, path, rate, serverTime, since, size, who } from "./format.js";
import { call, Live, pace, url } from "./live.js";

const { conn, job } = document.documentElement.dataset;
const page = document.getElementById("page");
const address = (...parts) => url("api", "jobs", conn, job, ...parts);
const NARROW = window.matchMedia("(max-width: 640px)");
const few = () => (NARROW.matches ? 6 : 12);
let newest = null;
let all = false;
let unchanged = 0;
let lastDecision = "";

const context = () => ({
  job_id: newest.job_id,
  spec: newest.spec,
  may: newest.may,
  address,
  refresh: () => live.now(),
});

const updated = h("p", { class: "updated" });
const parts = {
  head: new Section(drawHead, { class: "head" }),
  banners: new Section(drawBanners, { class: "banners" }),
  facts: new Section(drawFacts, { class: "facts" }),
  gate: new Section(drawGate, { class: "card gate", id: "staged" }),
  sources: new Section(drawSources, { class: "card", id: "sources" }),
  chart: new Section(drawChart, { class: "card", id: "chart" }),
  history: new Section(drawHistory, { class: "card", id: "history" }),
  points: new Section(drawPoints, { class: "card", id: "points" }),
  failures: new Section(drawFailures, { class: "card", id: "failures" }),
  counters: new Section(drawCounters, { class: "card", id: "counters" }),
  events: new Section(drawEvents, { class: "card", id: "events" }),
};
page.append(
  h("nav", { class: "crumbs", "aria-label": "Breadcrumbs" }, h("a", { href: url("ui", "jobs") }, "tidegate jobs"), h("span", { "aria-hidden": "true" }, "/"), h("span", {}, conn), updated),
  ...Object.values(parts).map((part) => part.element),
);

function show(data) {
  newest = data;
  serverTime(data.now);
  document.title = `${data.job_id} · tidegate`;
  page.removeAttribute("aria-busy");
  updated.className = `updated ${data.is_terminal ? "over" : "live"}`;
  updated.textContent = data.is_terminal ? "ended" : "live";
  const state = `${data.status} ${data.events[0]?.at} ${data.history[0]?.id}`;
  unchanged = state === lastDecision ? unchanged + 1 : 0;
  lastDecision = state;
  const { may, spec, job_id, is_terminal, is_silent, status } = data;
  const pressing = { may, spec, job_id, is_terminal, is_silent, no_restore: data.restore_problem };
  parts.head.show({ ...pressing, status, owner_dag: data.owner_dag, conn, pipeline: data.pipeline, submissions: data.submissions, master: data.master });
  parts.banners.show({ status, is_silent, reason: data.reason, failure: data.failures[0] ?? null, stop: data.stop, paused: data.sources_paused, deletions: data.deletions, silent: is_silent ? Math.round(data.silent_s / 10) * 10 : 0, slots: data.slots, waiting: data.waiting, no_restore: is_terminal || is_silent ? data.restore_problem : "" });
  parts.facts.show({ rate: data.rate, records: data.records, watermark: data.watermark, lag: is_terminal ? null : Math.round(data.lag_s ?? 0), last: data.history.find((s) => s.status === "completed") ?? null, restarts: data.restarts, statistics: data.statistics, generation: data.generation, slots: data.slots, parallelism: data.parallelism, is_terminal });
  parts.gate.show(data.gated && (data.waiting.length || data.staged.length) ? { ...pressing, waiting: data.waiting, staged: data.staged, problem: data.staged_problem } : null);
  parts.sources.show({ sources: data.sources, is_terminal });
  parts.chart.show(data.history);
  parts.history.show({ history: data.history, total: data.history_total, statistics: data.statistics, all });
  parts.points.show({ ...pressing, points: data.points, latest: data.latest_point });
  parts.failures.show(data.failures);
  parts.counters.show({ counters: data.counters, periods: data.counters_periods });
  parts.events.show(data.events);
}

function drawHead(job) {
  const gone = job.is_terminal ? "The job has ended" : "";
  const silent = job.is_silent ? "The job's driver gives no sign of life" : "";
  const plain = (name, kind = "") => button(name, context(), { why: gone || (name === "cancel" ? "" : silent), kind });
  const last = job.submissions.at(-1);
  const restores = job.is_terminal || job.is_silent;
  return [
    h("div", { class: "title" },
      h("h1", {}, job.job_id), badge(job.status, job.is_silent),
      h("p", { class: "sub" },
        job.owner_dag ? ["DAG ", h("span", { class: "dag" }, job.owner_dag)] : "no owner DAG",
        " · ", h("code", {}, job.pipeline),
        " · submission ", String(last.number), last.restored ? ` (${last.was_restored ? "restored" : "to be restored"} ${last.restored === "latest" ? "from the latest" : ""})`.replace(" )", ")") : "",
        " by ", who(last.by), ", ", since(last.at))),
    h("div", { class: "buttons", role: "group", "aria-label": "Actions" },
      restores ? button("restore", context(), { kind: "solid", why: job.no_restore }) : [plain("savepoint", "solid"), plain("checkpoint")],
      plain("suspend"), plain("drain"), plain("cancel")),
  ];
}

const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

function banner(tone, title, ...content) {
  return h("div", { class: `banner ${tone}`, role: tone === "failed" ? "alert" : null }, h("strong", {}, title), ...content.map((c) => (typeof c === "string" ? (c ? h("p", {}, c) : null) : c)));
}

function drawBanners(job) {
  const told = [];
  const failure = job.failure;
  if (job.status === "FAILED") {
    const place = failure ? [failure.operator, failure.subtask === null ? null : `subtask ${failure.subtask}`].filter(Boolean).join(", ") : "";
    told.push(banner("failed", "The job has failed", job.reason || failure?.message || "", place ? h("p", { class: "where" }, place) : null));
  }
  if (job.is_silent) told.push(banner("failed", "The driver gives no sign of life", `Neither its heartbeat nor its decision log has changed for ${duration(job.silent)}. A restore from the latest recovery point starts a new driver. After that, the silent driver can no longer change the job.`));
  if (job.stop) told.push(banner(job.stop.stopped ? "success" : "warning", `Stop (${job.stop.mode}): ${String(job.stop.outcome).replaceAll("_", " ")}`, job.stop.meaning, job.stop.next, job.stop.remark, job.stop.path ? h("p", {}, path(job.stop.path)) : null));
  else if (job.status === "CANCELED") told.push(banner("quiet", "The job was cancelled", job.reason));
  else if (job.status === "STOPPED" && job.reason) told.push(banner("quiet", "The job has stopped", job.reason));
  if (job.status === "WAITING_FOR_SLOTS" && job.slots.needed) told.push(banner("warning", `Waiting for slots: ${job.slots.registered ?? 0} of ${job.slots.needed} have registered`, "The job starts when all slots have registered. If the number does not grow, check the free resources of the cluster."));
  if (job.status === "CREATED") told.push(banner("quiet", "No driver has started yet", "The job is submitted, and waits for its driver. If no driver starts within some minutes, start the job again."));
  if (job.status === "RESTARTING") told.push(banner("warning", "The job is restarting", failure?.message ?? ""));
  if (job.no_restore) told.push(banner("quiet", "This page cannot restore the job", job.no_restore));
  if (job.paused) told.push(banner("warning", "The sources are paused", `${job.waiting.length} checkpoints wait for approval or rejection, the largest number that max_uncommitted_checkpoints allows. Commit or reject them: until then the job reads no records.`));
  if (job.deletions) told.push(banner("warning", "Checkpoints wait for file deletions", job.deletions));
  return told;
}

function fact(label, value, detail = null) {
  return h("div", { class: "fact" }, h("span", {}, label), h("b", {}, value ?? "–"), h("small", {}, detail));
}

function drawFacts(job) {
  const last = job.last;
  return [
    fact("Throughput", job.is_terminal ? "–" : (rate(job.rate) ?? (job.records === null ? "–" : "measuring")), job.records === null ? null : `${count(job.records)} records read in this run`),
    fact("Watermark", eventMinute(job.watermark), job.watermark ? (job.is_terminal ? "UTC" : `UTC, lag ${duration(job.lag)}`) : "none yet"),
    fact("Last snapshot", last ? milliseconds(last.duration_ms) : null, last ? [`${last.kind} ${last.id}, ${size(last.bytes) ?? "size unknown"}, `, since(last.completed_at)] : "none yet"),
    fact("Snapshots", count(job.statistics.completed), [plural(job.statistics.savepoints, "savepoint"), Object.values(job.statistics.aborted).length ? `, ${Object.values(job.statistics.aborted).reduce((a, b) => a + b, 0)} aborted` : ""].join("")),
    fact("Slots", job.slots.needed ? `${job.slots.registered ?? 0} of ${job.slots.needed}` : count(job.parallelism), `generation ${job.generation}`),
    fact("Restarts", count(job.restarts), "since this submission started"),
  ];
}

function drawGate(gate) {
  if (!gate) return null;
  const newestWaiting = gate.waiting.at(-1);
  const ended = gate.is_terminal ? "The job has ended: give the verdict in a DAG (TidegateCommitCheckpointOperator, TidegateRejectCheckpointOperator) or with `tidegate commit-pending`" : "";
  return card("Waiting for approval or rejection",
    h("p", { class: "sub" }, `Checkpoints ${gate.waiting.join(", ")} have staged rows. Readers of the output see these rows only after you commit the checkpoint.`),
    gate.problem ? h("p", { class: "sub" }, gate.problem) : null,
    gate.staged.length ? table([["Sink", "name"], ["From checkpoint", "number"], ["Rows", "number"], ["Size", "number"], ["Where"]],
      gate.staged.map((s) => [h("code", {}, s.uid), `#${s.checkpoint_id}`, count(s.rows), size(s.bytes),
        s.paths.length ? h("details", { "data-key": `staged ${s.uid} ${s.checkpoint_id}` }, h("summary", {}, plural(s.paths.length + s.more_paths, `${s.format} file`)), s.paths.map((p) => h("div", {}, path(p))), s.more_paths ? `and ${s.more_paths} more` : null)
          : h("span", {}, s.relation || s.kind, s.place ? h("small", {}, s.place) : null)]), "Staged rows") : null,
    h("ul", { class: "verdicts" }, gate.waiting.map((n) => h("li", {}, h("b", {}, `#${n}`),
      button("commit", context(), { more: { checkpoint_id: n }, why: ended, kind: n === newestWaiting ? "solid" : "" }),
      button("reject", context(), { more: { checkpoint_id: n }, why: ended })))));
}

function drawSources({ sources, is_terminal }) {
  if (!sources.length) return null;
  return card("Sources",
    table([["Source", "name"], ["Kind"], ["Data"], ["Records in this run", "number"], ["Throughput", "number"], ["Watermark"]],
      sources.map((s) => [h("code", {}, s.uid), s.boundedness,
        s.end_of_data ? h("span", { class: "mark done" }, "end of data") : s.played_all ? h("span", { class: "mark done" }, "played all, stays open") : is_terminal ? null : h("span", { class: "mark" }, "reading"),
        count(s.records), is_terminal || s.end_of_data ? null : rate(s.rate), eventTime(s.watermark)]), "Sources"));
}

function drawChart(history) {
  const figure = chart(history);
  return figure ? card("Duration and size of snapshots", figure) : null;
}

const VERDICTS = { waiting: "waiting", approved: "approved", rejected: "rejected", quarantined: "in quarantine" };

function outcome(s) {
  if (s.status === "pending") return h("span", { class: "mark" }, "under way");
  if (s.status === "aborted") return h("span", { class: "mark bad", title: s.reason ?? "" }, s.reason ? `aborted: ${s.reason}` : "aborted");
  if (s.taken_back) return h("span", { class: "mark bad" }, "rewound");
  if (s.committed) return h("span", { class: "mark done" }, "committed");
  if (s.verdict) return h("span", { class: `mark ${s.verdict === "approved" ? "done" : s.verdict === "waiting" ? "wait" : "bad"}` }, VERDICTS[s.verdict]);
  return h("span", { class: "mark done" }, "completed");
}

function drawHistory({ history, total, statistics, all: whole }) {
  if (!history.length) return card("Snapshots", h("p", { class: "sub" }, "The job has not triggered a snapshot yet."));
  const shown = whole ? history : history.slice(0, few());
  const figures = statistics.duration_ms;
  return card("Snapshots",
    figures ? h("p", { class: "sub" }, `${count(statistics.completed)} completed of ${count(statistics.triggered)}; median ${milliseconds(figures.p50)}, slowest ${milliseconds(figures.max)}.`) : null,
    table([["Id", "number id"], ["Kind"], ["Outcome"], ["Triggered"], ["Duration", "number"], ["Alignment", "number"], ["Sync", "number"], ["Async", "number"], ["Size", "number"], ["Requested by"]],
      shown.map((s) => [`#${s.id}`, s.kind, outcome(s), since(s.triggered_at), milliseconds(s.duration_ms), milliseconds(s.alignment_ms), milliseconds(s.sync_ms), milliseconds(s.async_ms), size(s.bytes), who(s.by)]), "Snapshots, newest first"),
    history.length > few() ? h("div", { class: "more" }, h("button", { type: "button", onclick: () => ((all = !all), show(newest)) }, whole ? "Show fewer" : `Show ${history.length} of ${total}`)) : null);
}

function drawPoints(job) {
  if (!job.points.length) return null;
  return card("Restore points",
    h("p", { class: "sub" }, job.latest === null ? "" : `The latest recovery point is #${job.latest}. You can restore it, or any other snapshot in this list.`),
    table([["Id", "number id"], ["Kind"], ["Completed"], ["Size", "number"], ["Path"], ["", "act"]],
      job.points.map((s) => [`#${s.id}`, s.kind, since(s.completed_at), size(s.bytes), path(s.path),
        button("restore", context(), { more: { checkpoint_id: s.id }, why: job.no_restore })]), "Restore points, newest first"));
}

function drawFailures(failures) {
  if (!failures.length) return null;
  return card("Failures",
    h("ol", { class: "failures" }, failures.map((f) =>
      h("li", {}, h("p", {}, h("strong", {}, f.message)),
        h("p", { class: "sub" }, [f.words, f.operator, f.subtask === null ? null : `subtask ${f.subtask}`, `submission ${f.spec}`].filter(Boolean).join(", "), ", ", since(f.at)),
        f.traceback ? h("details", { "data-key": `trace ${f.at}` }, h("summary", {}, "Traceback"), h("pre", {}, f.traceback)) : null))));
}

function drawCounters({ counters, periods }) {
  const rows = Object.entries(counters).flatMap(([uid, of]) => Object.entries(of).map(([name, n]) => [h("code", {}, uid), name.replaceAll("_", " "), count(n), periods[uid]]));
  return rows.length ? card("Counted by operators", table([["Operator", "name"], ["What"], ["Records", "number"], ["Period"]], rows, "Counters")) : null;
}

function drawEvents(events) {
  if (!events.length) return null;
  return card("Decision log",
    h("p", { class: "sub" }, "Decisions about the job, and who made them. Periodic checkpoints are not listed here."),
    h("ol", { class: "events" }, events.map((e) => h("li", {}, since(e.at), h("span", {}, e.what), e.by ? h("em", {}, "by ", who(e.by)) : null))));
}

const live = new Live(() => call(address()), show, (error) => {
  page.removeAttribute("aria-busy");
  updated.className = "updated lost";
  updated.textContent = error.status === 401 ? "logged out: reload the page" : error.status === 404 ? "this job no longer exists, or you may no longer see it" : `Airflow does not answer: ${error.message}`;
}, (data) => pace(data.is_terminal, unchanged));
live.now();
