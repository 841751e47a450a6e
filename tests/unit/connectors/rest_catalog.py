"""A REST catalog on loopback, as far as a sink needs one: an HTTP server in front of pyiceberg's SQL catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

Answer = tuple[int, Mapping[str, Any]]


class RestCatalogServer:
    """Runs from the constructor to `stop`.

    Attributes:
        uri: address for `uri` of a catalog's properties.
        token: token that each request must have.
        after_commits: called after each commit that succeeded, with its answer; returns the answer to send.
    """

    def __init__(self, catalog: Catalog, token: str = "let-me-in") -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self.token = token
        self.after_commits: Callable[[Answer], Answer] = lambda answer: answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        catalog = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {catalog.token}":
                    status, found = 401, _error("NotAuthorizedException", "a wrong token")
                else:
                    parts = self.path.partition("?")[0].strip("/").split("/")[1:]
                    with catalog._lock:
                        status, found = catalog._answer(self.command, parts, body)
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content) if self.command != "HEAD" else 0))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_POST = do_HEAD = _serve

        return Handler

    def _answer(self, command: str, parts: list[str], body: bytes) -> Answer:
        try:
            match command, parts:
                case "GET", ["config"]:
                    return 200, {"defaults": {}, "overrides": {}}
                case "POST", ["namespaces"]:
                    self._catalog.create_namespace_if_not_exists(".".join(json.loads(body)["namespace"]))
                    return 200, json.loads(body)
                case (("GET" | "HEAD"), ["namespaces", name]):
                    exists = self._catalog.namespace_exists(name)
                    return (204, {}) if exists else (404, _error("NoSuchNamespaceException", name))
                case "POST", ["namespaces", name, "tables"]:
                    return 200, _document(self._created(name, json.loads(body)))
                case (("GET" | "HEAD"), ["namespaces", name, "tables", table]):
                    return 200, _document(self._catalog.load_table(f"{name}.{table}"))
                case "POST", ["namespaces", name, "tables", table]:
                    return self._committed(f"{name}.{table}", body)
        except NoSuchTableError as e:
            return 404, _error("NoSuchTableException", str(e))
        except TableAlreadyExistsError as e:
            return 409, _error("AlreadyExistsException", str(e))
        except CommitFailedException as e:
            return 409, _error("CommitFailedException", str(e))
        return 400, _error("BadRequestException", f"{command} {parts}")

    def _created(self, namespace: str, asked: Mapping[str, Any]) -> Table:
        return self._catalog.create_table(
            f"{namespace}.{asked['name']}",
            Schema.model_validate(asked["schema"]),
            partition_spec=PartitionSpec.model_validate(asked["partition-spec"]),
            properties=asked.get("properties") or {},
        )

    def _committed(self, table: str, body: bytes) -> Answer:
        asked = CommitTableRequest.model_validate_json(body)
        self._catalog.commit_table(self._catalog.load_table(table), asked.requirements, asked.updates)
        return self.after_commits((200, _document(self._catalog.load_table(table))))


def _document(table: Table) -> Mapping[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


def _error(kind: str, message: str) -> Mapping[str, Any]:
    return {"error": {"message": message, "type": kind, "code": 400}}
