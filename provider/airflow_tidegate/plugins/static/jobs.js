// The list of jobs.
import { h, Section, table } from "./dom.js";
import { badge, count, duration, eventTime, rate, since, who } from "./format.js";
import { call, Live, pace, url } from "./live.js";

const page = document.getElementById("page");
const dag = new URLSearchParams(location.search).get("dag") ?? "";
let chosen = "all";
let words = "";
let newest = null;
let pages = 1;

const needsCare = (job) =>
  job.is_silent || ["FAILED", "FINISHED_COMMIT_PENDING", "RESTARTING"].includes(job.status) || job.waiting.length > 0;
const FILTERS = {
  all: ["All", () => true],
  live: ["Active", (job) => !job.is_terminal],
  care: ["Needs attention", needsCare],
  over: ["Ended", (job) => job.is_terminal],
};

const search = h("input", { type: "search", placeholder: "Job or DAG", "aria-label": "Search jobs", oninput: () => ((words = search.value.toLowerCase()), draw()) });
const chips = new Section(([now, counts]) =>
  Object.entries(FILTERS).map(([name, [label]]) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(now === name), onclick: () => ((chosen = name), draw()) }, label, h("span", {}, counts[name])),
  ), { class: "chips" });
const status = h("p", { class: "updated" });
const list = new Section(drawJobs);
const problems = new Section(drawProblems);
const more = new Section((there) =>
  there ? h("button", { type: "button", onclick: () => ((pages += 1), live.now()) }, "Show more") : null, { class: "more" });

page.append(
  h("header", {}, h("div", {}, h("h1", {}, "tidegate jobs"), dag ? h("p", { class: "sub" }, "of DAG ", h("code", {}, dag), " · ", h("a", { href: url("ui", "jobs") }, "all jobs")) : null), status),
  h("div", { class: "toolbar" }, chips.element, search),
  problems.element,
  list.element,
  more.element,
);

async function read() {
  const found = { jobs: [], problems: [], unreadable: 0, next: null, connections: [] };
  for (let i = 0, after = ""; i < pages; i += 1) {
    const query = new URLSearchParams({ ...(after ? { after } : {}), ...(dag ? { dag } : {}) });
    const told = await call(`${url("api", "jobs")}?${query}`);
    found.jobs.push(...told.jobs);
    Object.assign(found, { problems: told.problems, unreadable: told.unreadable, next: told.next, connections: told.connections });
    after = told.next;
    if (!after) break;
  }
  return found;
}

function draw() {
  if (!newest) return;
  const found = newest.jobs.filter((job) => `${job.job_id} ${job.owner_dag ?? ""}`.toLowerCase().includes(words));
  chips.show([chosen, Object.fromEntries(Object.entries(FILTERS).map(([name, [, fits]]) => [name, found.filter(fits).length]))]);
  const shown = found.filter(FILTERS[chosen][1]);
  const order = (job) => (needsCare(job) ? 0 : job.is_terminal ? 2 : 1);
  shown.sort((a, b) => order(a) - order(b) || a.job_id.localeCompare(b.job_id));
  list.show({ jobs: shown, none: newest.jobs.length === 0, several: newest.connections.length > 1, connections: newest.connections });
  problems.show({ problems: newest.problems, unreadable: newest.unreadable });
  more.show(Boolean(newest.next));
}

function drawJobs({ jobs, none, several, connections }) {
  if (none) {
    return h("div", { class: "empty" }, h("h2", {}, dag ? "This DAG has not started a job yet" : "No jobs yet"),
      h("p", {}, `A task with TidegateStartJobOperator starts a job. This page shows jobs of the connections ${connections.join(", ")} whose DAG you may read.`));
  }
  if (jobs.length === 0) return h("div", { class: "empty" }, h("p", {}, "No job matches the filter."));
  const columns = [["Job", "name"], ["Status"], ["Throughput", "number"], ["Records in this run", "number"], ["Watermark"], ["Last checkpoint"], ["Restarts", "number"], ["Owner DAG"]];
  return table(columns, jobs.map((job) => [
    h("div", {}, h("a", { href: url("ui", "jobs", job.conn_id, job.job_id), class: "job" }, job.job_id), several ? h("small", {}, job.conn_id) : null),
    h("div", {}, badge(job.status, job.is_silent),
      job.waiting.length ? h("small", {}, `${job.waiting.length} waiting for approval or rejection`) : null,
      job.reason ? h("small", { class: "reason", title: job.reason }, job.reason) : null),
    rate(job.rate),
    job.records ? count(job.records) : null,
    job.watermark ? h("div", {}, eventTime(job.watermark), job.is_terminal ? null : h("small", {}, `lag ${duration(job.lag_s)}`)) : null,
    job.last_checkpoint_at ? h("div", {}, since(job.last_checkpoint_at), h("small", {}, `${count(job.checkpoints)} in total`)) : null,
    String(job.restarts),
    job.owner_dag ? h("span", { class: "dag" }, job.owner_dag) : who(job.submitted_by),
  ]), "Jobs");
}

function drawProblems({ problems: told, unreadable }) {
  if (told.length + unreadable === 0) return null;
  return h("div", { class: "banner warning" }, h("strong", {}, "Some jobs cannot be read"),
    h("ul", {}, told.map((p) => h("li", {}, h("code", {}, p.job_id ? `${p.conn_id} / ${p.job_id}` : p.conn_id), ` ${p.problem}`)),
      unreadable ? h("li", {}, `${unreadable} more connections or jobs; users who may edit the connection see which`) : null));
}

const live = new Live(read, (data) => {
  newest = data;
  page.removeAttribute("aria-busy");
  status.className = "updated live";
  status.textContent = "live";
  draw();
}, (error) => {
  page.removeAttribute("aria-busy");
  status.className = "updated lost";
  status.textContent = error.status === 401 ? "logged out: reload the page" : `Airflow does not answer: ${error.message}`;
}, (data) => (data.jobs.some((job) => !job.is_terminal) ? 4000 : pace(true, 1)));
live.now();
