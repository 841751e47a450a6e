"""Registers the page in Airflow. Every Airflow process imports this module, so the page itself is imported only when it
is requested."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin

from airflow_tidegate.version_compat import conf

URL_PREFIX = "/tidegate"


class LazyPage:
    """The page as an ASGI application, created at its first request: workers, scheduler and triggerer never create
    it."""

    def __init__(self) -> None:
        self._app: Any = None
        self._lock = threading.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        with self._lock:
            if self._app is None:
                from airflow_tidegate.plugins.page_app import make_app

                self._app = make_app()
        await self._app(scope, receive, send)


def views(base: str) -> list[dict[str, Any]]:
    """Return the views that Airflow shows in frames. Args: base: path of Airflow's server, without slash at its end."""
    page, dag, run, task = f"{base}{URL_PREFIX}", "dag_id={DAG_ID}", "run_id={RUN_ID}", "task_id={TASK_ID}"
    shown = {
        "nav": ("tidegate", "ui/jobs"),
        "dag": ("tidegate-dag", f"ui/go?{dag}"),
        "dag_run": ("tidegate-run", f"ui/go?{dag}&{run}"),
        "task": ("tidegate-task", f"ui/go?{dag}&{task}"),
        "task_instance": ("tidegate-task-instance", f"ui/go?{dag}&{run}&{task}"),
    }
    icons = {"icon": f"{page}/static/icon.svg", "icon_dark_mode": f"{page}/static/icon-dark.svg"}
    return [
        {"name": "tidegate", "destination": destination, "url_route": route, "href": f"{page}/{address}", **icons}
        | ({"category": "browse"} if destination == "nav" else {})
        for destination, (route, address) in shown.items()
    ]


class TidegatePlugin(AirflowPlugin):
    """Adds a navigation entry with the list of jobs, and a tab on DAG, run and task pages that leads to their job."""

    name = "tidegate"
    fastapi_apps = [{"app": LazyPage(), "url_prefix": URL_PREFIX, "name": "tidegate"}]
    external_views = views(urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/"))
