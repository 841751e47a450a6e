"""Runs one DAG over REST: unpause, trigger, follow its tasks, read logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from airflow_home import AirflowFailed, Standalone

PARSE_TIMEOUT_S = 120.0
"""Time limit for the DAG processor to find a DAG."""
POLL_S = 1.0
"""Pause between two reads of a run."""


class DagRun:
    """A run of one DAG in one Airflow."""

    def __init__(self, airflow: Standalone, dag_id: str, run_id: str) -> None:
        self._airflow, self.dag_id, self.run_id = airflow, dag_id, run_id
        self._run = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"

    def trigger(self, conf: Mapping[str, Any]) -> None:
        """Wait until the DAG is parsed, unpause and trigger it. Raises AirflowFailed with the import error, if any."""
        deadline = time.monotonic() + PARSE_TIMEOUT_S
        while True:
            try:
                self._airflow.call("PATCH", f"/api/v2/dags/{self.dag_id}", {"is_paused": False})
                break
            except AirflowFailed as error:
                problems = self._airflow.call("GET", "/api/v2/importErrors")["import_errors"]
                if problems:
                    raise AirflowFailed(problems[0]["stack_trace"]) from None
                if time.monotonic() > deadline:
                    raise AirflowFailed(f"DAG {self.dag_id} was not found: {error}") from None
            time.sleep(POLL_S)
        body = {"logical_date": None, "dag_run_id": self.run_id, "conf": dict(conf)}
        self._airflow.call("POST", f"/api/v2/dags/{self.dag_id}/dagRuns", body)

    def state(self) -> str:
        """Return `queued`, `running`, `success` or `failed`."""
        return str(self._airflow.call("GET", self._run)["state"])

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the task instances of the API by task id."""
        answer = self._airflow.call("GET", f"{self._run}/taskInstances")
        return {task["task_id"]: task for task in answer["task_instances"]}

    def follow(self, timeout_s: float, each_look: Callable[[], None] = lambda: None) -> Iterator[tuple[str, str, int]]:
        """Yield state changes as (task id, state, try), until the run has ended. Raises AirflowFailed after
        `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        seen: dict[str, tuple[str, int]] = {}
        while True:
            over = self.state() in ("success", "failed")
            for task_id, task in self.tasks().items():
                now = (task["state"] or "waiting", task["try_number"])
                if seen.get(task_id, ("waiting", 0))[0] != now[0]:
                    yield task_id, *now
                seen[task_id] = now
            each_look()
            if over:
                return
            if time.monotonic() > deadline:
                raise AirflowFailed(f"DAG run {self.run_id} has not ended after {timeout_s:.0f} s: {seen}")
            time.sleep(POLL_S)

    def log(self, task_id: str, attempt: int = 1) -> str:
        """Return the log of one try, as text."""
        answer = self._airflow.call("GET", f"{self._run}/taskInstances/{task_id}/logs/{attempt}?full_content=true")
        lines = answer["content"]
        if isinstance(lines, str):
            return lines
        return "\n".join(_line(entry) for entry in lines)

    def xcom(self, task_id: str) -> Any:
        """Return the value that a task returned."""
        path = f"{self._run}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
        return self._airflow.call("GET", path)["value"]


def _line(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    text = str(entry.get("event", ""))
    for detail in entry.get("error_detail") or ():
        text += f"\n{detail.get('exc_type', '')}: {detail.get('exc_value', '')}"
    return text
