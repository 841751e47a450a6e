// Formats numbers and times.
import { h } from "./dom.js";

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return null;
  let [n, unit] = [bytes, 0];
  while (n >= 1024 && unit < SIZES.length - 1) [n, unit] = [n / 1024, unit + 1];
  return `${unit === 0 ? n : n.toFixed(1)} ${SIZES[unit]}`;
}

export const count = (n) => (n === null || n === undefined ? null : n.toLocaleString("en-US"));

export function rate(n) {
  if (n === null || n === undefined) return null;
  const short = n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e4 ? `${(n / 1e3).toFixed(1)} k` : count(Math.round(n));
  return `${short}/s`;
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return null;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000);
}

/** Seconds as "3 min", "2 h 5 min", "12 d". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return null;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 && s % 60 ? ` ${s % 60} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h${Math.floor((s % 3600) / 60) ? ` ${Math.floor((s % 3600) / 60)} min` : ""}`;
  if (s < 86400 * 365 * 2) return `${Math.floor(s / 86400)} d`;
  return `${(s / 86400 / 365.25).toFixed(1)} years`;
}

/** Event time to the second, with the zone. */
export function eventTime(iso) {
  return iso === null || iso === undefined ? null : `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

/** Event time to the minute, for large figures. */
export const eventMinute = (iso) => (iso ? `${iso.slice(0, 10)} ${iso.slice(11, 16)}` : null);

/** How far the server's clock is ahead of this one, milliseconds. */
let ahead = 0;
export function serverTime(iso) {
  ahead = Date.parse(iso) - Date.now();
}

const ago = (iso) => {
  const s = (Date.now() + ahead - Date.parse(iso)) / 1000;
  return s < 1.5 ? "now" : `${duration(s)} ago`;
};

/** A time as "3 min ago", which is updated every second; the full time is its title. */
export function since(iso) {
  if (!iso) return null;
  return h("time", { datetime: iso, title: `${iso.replace("T", " ").replace("Z", " UTC")}` }, ago(iso));
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const text = ago(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
  }
}, 1000);

const TONES = {
  RUNNING: "running",
  FINISHED: "success",
  STOPPED: "success",
  FINISHED_COMMIT_PENDING: "warning",
  FAILED: "failed",
  CANCELED: "quiet",
  RESTARTING: "restarting",
  STOPPING: "warning",
  WAITING_FOR_SLOTS: "warning",
  CREATED: "quiet",
};

/** The status as a badge in Airflow's colours of states. */
export function badge(status, isSilent = false) {
  const tone = isSilent ? "failed" : (TONES[status] ?? "quiet");
  const words = status.replaceAll("_", " ").toLowerCase();
  return h("span", { class: `badge ${tone}` }, h("i", { "aria-hidden": "true" }), isSilent ? `${words}, no sign of life` : words);
}

/** A sender such as "airflow-ui:anna" or "airflow:dag/run/task" without its prefix; the full name is the title. */
export function who(by) {
  if (!by) return null;
  const text = by.startsWith("airflow-ui:") ? by.slice(11) : by.startsWith("airflow:") ? by.slice(8) : by;
  return h("span", { class: "who", title: by }, text);
}

/** A long path that can wrap and be copied. */
export const path = (text) => (text ? h("code", { class: "path" }, text) : null);
