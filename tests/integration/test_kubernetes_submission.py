"""The real spark-submit, against a stand-in for the API server of Kubernetes: it takes the command lines, and makes the
pod that is meant. What runs in that pod is not tried here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import PIPELINE

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.kubernetes import KubernetesLauncher
from tidegate.jobs.launch.launcher import DriverState, LauncherSettings
from tidegate.jobs.process_environment import storage_options_from


class ApiServer(ThreadingHTTPServer):
    """Keeps what is posted, gives it back, and deletes it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        self.objects: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    @property
    def master(self) -> str:
        return f"k8s://http://127.0.0.1:{self.server_port}"

    def pods(self) -> dict[str, dict[str, Any]]:
        """By namespace and name."""
        return {path: thing for path, thing in self.objects.items() if "/pods/" in path}


class Requests(BaseHTTPRequestHandler):
    """The few verbs that spark-submit uses."""

    protocol_version = "HTTP/1.1"
    server: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        found = self.server.objects.get(self.path.partition("?")[0])
        self._answer(200 if found is not None else 404, found)

    def do_POST(self) -> None:
        self._take(self.path.partition("?")[0], named=False)

    def do_PATCH(self) -> None:
        self._take(self.path.partition("?")[0], named=True)

    def do_PUT(self) -> None:
        self._take(self.path.partition("?")[0], named=True)

    def do_DELETE(self) -> None:
        self._body()
        found = self.server.objects.pop(self.path.partition("?")[0], None)
        self._answer(200 if found is not None else 404, found)

    def _take(self, path: str, *, named: bool) -> None:
        thing = json.loads(self._body())
        path = path if named else f"{path}/{thing['metadata']['name']}"
        with self.server.lock:
            if not named and path in self.server.objects:
                self._answer(409, None)
                return
            thing["metadata"] |= {"uid": "0-1-2", "creationTimestamp": "2026-11-21T09:25:00Z"}
            if "/pods/" in path:
                thing["status"] = {"phase": "Pending"}
            self.server.objects[path] = thing
        self._answer(201, thing)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, thing: dict[str, Any] | None) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": f"code {code}"}
        body = json.dumps(thing if thing is not None else status).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_spark_submit_makes_the_pod_finds_it_again_and_deletes_it(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    client = JobClient(str(tmp_path / "jobs"), "counting", {"endpoint_url": 'http://"quoted"'})
    spec = client.submit(
        pipeline=f"{PIPELINE}:build",
        master=api_server.master,
        spark_conf={
            "spark.kubernetes.container.image": "repo/tidegate:1",
            "spark.kubernetes.namespace": "jobs",
            "spark.kubernetes.driver.secretKeyRef.LAKE": "lake:key",
            "spark.ui.filters.token": "secret:env/LAKE",
        },
    )
    launcher = KubernetesLauncher(LauncherSettings("kubernetes", python="/opt/venv/bin/python"))
    launch = launcher.launch(client, spec)

    (path,) = api_server.pods()
    assert launch.external_id == f"jobs:{path.rpartition('/')[2]}" and "/namespaces/jobs/" in path
    (container,) = api_server.pods()[path]["spec"]["containers"]
    assert container["image"] == "repo/tidegate:1"
    words = container["args"]
    assert words[0] == "driver"
    assert words[-9].endswith("/opt/tidegate/driver_entry.py")
    told = {"--root": client.root, "--job": "counting", "--spec": "1", "--launch": "1"}
    assert words[-8:] == [word for pair in told.items() for word in pair]
    environment = {variable["name"]: variable for variable in container["env"]}
    assert storage_options_from(environment["TIDEGATE_STORAGE_OPTIONS"]["value"]) == client.storage_options
    assert environment["LAKE"]["valueFrom"]["secretKeyRef"] == {"name": "lake", "key": "key"}
    settings = "".join(text for thing in api_server.objects.values() for text in (thing.get("data") or {}).values())
    assert "spark.pyspark.python=/opt/venv/bin/python" in settings and "secret:env" not in settings

    again = KubernetesLauncher(LauncherSettings())
    assert again.state(launch) is DriverState.RUNNING
    api_server.objects[path]["status"] = {"phase": "Failed"}
    assert again.state(launch) is DriverState.GONE
    api_server.objects[path]["status"] = {"phase": "Running"}
    assert again.kill(launch)
    assert api_server.pods() == {}
    assert again.state(launch) is DriverState.GONE
