// The buttons: the dialog of each, its command, and the answer of the job's driver.
import { h, notice } from "./dom.js";
import { call } from "./live.js";

const ANSWER_POLL_MS = 1000;
const LONGEST_ANSWER_MS = 15 * 60 * 1000;

/** Each press has one nonce, so that a second click or a repeated request counts as the same press. */
function newNonce() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

const option = (value, words) => h("option", { value }, words);

function select(name, label, options, hint) {
  return h("label", {}, label, h("select", { name }, options.map(([v, w]) => option(v, w))), hint ? h("small", {}, hint) : null);
}

function check(name, label, hint) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", name }), h("span", {}, label, hint ? h("small", {}, hint) : null));
}

const ON_TIMEOUT = [
  ["keep_running", "abandon the stop: the job continues"],
  ["suspend", "stop without firing windows"],
  ["cancel", "cancel the job"],
];

const stopFields = (drains) => [
  h("label", {}, "Time limit", h("input", { name: "timeout", placeholder: "10 min (default: the job's stop_timeout)", autocomplete: "off" })),
  select("on_timeout", "If the job has not ended within the time limit", drains ? ON_TIMEOUT : ON_TIMEOUT.filter(([v]) => v !== "suspend")),
];

/** Verb on the page -> its texts. `fixed`: arguments; `fields`: inputs of the dialog; `danger`: warning colour. */
export const ACTIONS = {
  checkpoint: { label: "Checkpoint", right: "operate", done: "Checkpoint completed" },
  savepoint: { label: "Savepoint", right: "operate", done: "Savepoint completed" },
  suspend: {
    verb: "stop",
    label: "Stop…",
    right: "control",
    danger: true,
    title: "Stop the job with a savepoint",
    text: "The job ends. The savepoint keeps open windows and all other state; a restore resumes from it.",
    fixed: { mode: "suspend" },
    fields: () => stopFields(false),
    confirm: "Stop the job",
    done: "The job has stopped",
  },
  drain: {
    verb: "stop",
    label: "Drain…",
    right: "control",
    danger: true,
    title: "Drain the job",
    text: "The sources stop, every open window fires with its current rows, all output is committed, and the job ends. A later restore from the drain's savepoint emits those windows again.",
    fixed: { mode: "drain" },
    fields: () => stopFields(true),
    confirm: "Drain the job",
    done: "The job is drained",
  },
  cancel: {
    label: "Cancel…",
    right: "control",
    danger: true,
    title: "Cancel the job",
    text: "The job ends at once, without a savepoint. A restore processes the input after its latest checkpoint again.",
    confirm: "Cancel the job",
    done: "The job is cancelled",
  },
  restore: {
    label: "Restore…",
    right: "control",
    title: "Restore the job",
    text: "A new submission of the same code, arguments and options starts from this snapshot.",
    fields: () => [
      select("on_committed_after", "If output was committed after the snapshot", [
        ["refuse", "refuse the restore"],
        ["rewind", "rewind: the sinks delete this output"],
        ["accept_duplicates", "accept duplicates: its rows are written again"],
      ]),
      check("allow_drained", "Allow the snapshot of a drain", "the drained windows fired early, and are emitted again"),
      check("allow_non_restored_state", "Drop state that the pipeline no longer uses"),
    ],
    confirm: "Restore",
    done: "Restored",
  },
  commit: {
    label: "Commit…",
    right: "operate",
    title: "Publish the staged output",
    text: "Approves this checkpoint and all earlier waiting checkpoints, and commits their output. An approval cannot be revoked.",
    confirm: "Commit",
    done: "Approved",
  },
  reject: {
    label: "Reject…",
    right: "control",
    danger: true,
    title: "Reject the staged output",
    text: "The staged output of this checkpoint and of all later checkpoints is never published.",
    fields: () => [
      select("then", "Then the job", [
        ["stop", "stops"],
        ["replay", "restores the checkpoint before this one and reads the input again"],
        ["quarantine", "continues; the staged rows move to the quarantine folder of the job"],
      ]),
      h("label", {}, "Reason", h("input", { name: "reason", maxlength: 500, placeholder: "for the decision log", autocomplete: "off" })),
    ],
    confirm: "Reject",
    done: "Rejected",
  },
};

/** A button for `name`. `more`: arguments such as a checkpoint; `why`: why it is disabled now, or "". */
export function button(name, context, { more = {}, why = "", kind = "" } = {}) {
  const action = ACTIONS[name];
  const allowed = context.may[action.right];
  const title = allowed ? why : "Your rights on the DAG that owns this job do not allow this action";
  return h(
    "button",
    {
      type: "button",
      class: `${kind} ${action.danger ? "danger" : ""}`,
      "data-action": name,
      disabled: !allowed || Boolean(why),
      title: title || action.title,
      onclick: (event) => press(name, context, more, event.currentTarget),
    },
    action.label,
  );
}

async function press(name, context, more, pressed) {
  const action = ACTIONS[name];
  const nonce = newNonce();
  pressed.disabled = true;
  try {
    const given = action.confirm ? await ask(action, context, more) : {};
    if (given) await send(name, context, { ...action.fixed, ...more, ...given, nonce, spec: context.spec });
  } finally {
    pressed.disabled = false;
  }
}

/** Shows the dialog. Resolves to the user's choices, or null. */
function ask(action, context, more) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" });
    const dialog = h("dialog", { "aria-label": action.title }, form);
    const of = more.checkpoint_id === undefined ? "" : `, snapshot ${more.checkpoint_id}`;
    form.append(
      h("h2", {}, action.title),
      h("p", { class: "which" }, `${context.job_id}${of}`),
      h("p", {}, action.text),
      ...(action.fields?.() ?? []),
      h(
        "footer",
        {},
        h("button", { type: "button", onclick: () => dialog.close("") }, "Keep as is"),
        h("button", { type: "button", class: action.danger ? "danger solid" : "solid", "data-confirm": "", onclick: () => dialog.close("yes") }, action.confirm),
      ),
    );
    // Do not submit the form: the page's content security policy forbids form actions.
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close("yes");
    });
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? fieldsOf(form) : null);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function fieldsOf(form) {
  const given = {};
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") given[field.name] = field.checked;
    else if (field.value.trim()) given[field.name] = field.value.trim();
  }
  return given;
}

async function send(name, context, body) {
  const action = ACTIONS[name];
  const show = notice("wait", `${action.label.replace("…", "")}: sending`);
  try {
    const told = await call(context.address(action.verb ?? name), body);
    context.refresh();
    if (told.done) show("good", action.done, told.done);
    else await follow(action, context, told.command_id, show);
  } catch (error) {
    show("bad", error.message, error.detail ?? "");
  }
  context.refresh();
}

async function follow(action, context, commandId, show) {
  show("wait", `${action.label.replace("…", "")}: command sent to the job`, "The answer appears here. You may leave the page.");
  const until = Date.now() + LONGEST_ANSWER_MS;
  while (Date.now() < until) {
    const told = await call(context.address("commands", commandId));
    if (told.answered) {
      const where = told.data.path ?? "";
      show(told.ok ? "good" : "bad", told.ok ? action.done : told.message, told.ok ? where || told.message : "");
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, ANSWER_POLL_MS));
  }
  show("wait", "The job has not answered yet", "The command stays in the job directory until the job answers or the command expires. Reload the page to see the job.");
}
