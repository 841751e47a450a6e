"""A schema registry for tests: the REST routes that Confluent's client uses, on loopback."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_ROUTES = (
    ("GET", re.compile(r"/schemas/ids/(\d+)"), "by_id"),
    ("GET", re.compile(r"/subjects/([^/]+)/versions/(\w+)"), "by_version"),
    ("POST", re.compile(r"/subjects/([^/]+)/versions"), "register"),
    ("POST", re.compile(r"/subjects/([^/]+)"), "look_up"),
)


@dataclass
class RegistryServer:
    """A running registry.

    Attributes:
        url: its address.
        requests: method and path of each request.
        status: answer every request with this status; 0: answer properly.
        password: `user:password` that requests must have; empty: none.
    """

    url: str = ""
    requests: list[str] = field(default_factory=list)
    status: int = 0
    password: str = ""
    _schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    _subjects: dict[str, list[int]] = field(default_factory=dict)

    def add(self, subject: str, text: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None) -> int:
        """Register a schema as the newest version of a subject; returns its id, which equal schemas share."""
        schema = {"schema": text, "schemaType": kind, "references": references or []}
        known = next((number for number, one in self._schemas.items() if one == schema), None)
        number = known or len(self._schemas) + 1
        self._schemas[number] = schema
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any, authorization: str) -> tuple[int, Any]:
        """Return status and content of the answer to a request."""
        self.requests.append(f"{method} {path}")
        if self.status:
            return self.status, {"error_code": self.status, "message": "as the test wants it"}
        if self.password and authorization != f"Basic {base64.b64encode(self.password.encode()).decode()}":
            return 401, {"error_code": 401, "message": f"wrong: {authorization}"}
        for wanted, pattern, name in _ROUTES:
            found = pattern.fullmatch(path)
            if wanted == method and found is not None:
                result: tuple[int, Any] = getattr(self, f"_{name}")(*map(unquote, found.groups()), body)
                return result
        return 404, {"error_code": 404, "message": "no such route"}

    def _by_id(self, number: str, body: Any) -> tuple[int, Any]:
        if int(number) not in self._schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, self._schemas[int(number)]

    def _by_version(self, subject: str, version: str, body: Any) -> tuple[int, Any]:
        versions = self._subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        place = len(versions) if version == "latest" else int(version)
        number = versions[place - 1]
        return 200, {**self._schemas[number], "id": number, "subject": subject, "version": place}

    def _register(self, subject: str, body: Any) -> tuple[int, Any]:
        return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}

    def _look_up(self, subject: str, body: Any) -> tuple[int, Any]:
        for version, number in enumerate(self._subjects.get(subject, ()), 1):
            if self._schemas[number]["schema"] == body["schema"]:
                return 200, {**self._schemas[number], "id": number, "subject": subject, "version": version}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def registry_server() -> Iterator[RegistryServer]:
    """Run a registry on a free port of loopback."""
    registry = RegistryServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            path = urlsplit(self.path).path
            status, content = registry.answer(self.command, path, body, self.headers.get("Authorization", ""))
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST = _serve

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing: tests read `requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
