// Polls the page's data: less often when nothing changes or the server fails, and not while the page is hidden.
const ROOT = document.documentElement.dataset.root ?? "";
const FASTEST_MS = 2000;
const CALM_MS = 10000;
const SLOWEST_MS = 60000;

export const url = (...parts) => `${ROOT}/${parts.map(encodeURIComponent).join("/")}`;

/** An error answer of the server. */
export class Refused extends Error {
  constructor(status, told) {
    super(told.what ?? `Airflow answered ${status}`);
    this.status = status;
    this.detail = [told.cause, told.remedy].filter(Boolean).join(". ");
  }
}

/** Fetches JSON from the server. Throws Refused for an error answer, or the error of `fetch` without an answer. */
export async function call(address, body) {
  const asked = { credentials: "same-origin", headers: { Accept: "application/json" } };
  if (body !== undefined) {
    asked.method = "POST";
    asked.headers["Content-Type"] = "application/json";
    asked.body = JSON.stringify(body);
  }
  const answer = await fetch(address, asked);
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  const detail = typeof told.detail === "string" ? { what: told.detail } : {};
  throw new Refused(answer.status, told.error ?? detail);
}

/** Calls `read` repeatedly; passes results to `show` and errors to `fail`. `interval`: result -> ms until the next call. */
export class Live {
  constructor(read, show, fail, interval) {
    Object.assign(this, { read, show, fail, interval, failures: 0, timer: 0, running: false, again: false });
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.timer) : this.now()));
  }

  /** Reads at once; if a read is running, reads again after it. */
  async now() {
    clearTimeout(this.timer);
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    let pause = SLOWEST_MS;
    try {
      const data = await this.read();
      this.failures = 0;
      this.show(data);
      pause = this.interval(data);
    } catch (error) {
      this.failures += 1;
      pause = Math.min(FASTEST_MS * 2 ** this.failures, SLOWEST_MS);
      this.fail(error, pause);
    }
    this.running = false;
    if (this.again) {
      this.again = false;
      await this.now();
    } else if (!document.hidden) {
      this.timer = setTimeout(() => this.now(), pause);
    }
  }
}

/** Polling interval: short while the job lives; longer and longer after its end. */
export function pace(isOver, unchangedReads) {
  if (!isOver) return FASTEST_MS;
  return Math.min(CALM_MS * 1.5 ** unchangedReads, SLOWEST_MS);
}
