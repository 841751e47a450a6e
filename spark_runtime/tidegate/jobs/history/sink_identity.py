"""The identity of a sink: the place that it writes to, as data, and as text in decision logs and pinned graphs. Pure.

The driver of a pipeline gets identities from its sinks. Readers of a log, such as a fork or lineage, have the text
`Kind(place, ..., option=...)`. `str(identity)` writes this text, and `recorded_identity` parses it.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "local": "file"}
"""Schemes of file systems and Spark that mean the same kind of store."""
_POSTGRES_PORT = ":5432"
_THIS_HOST = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class SinkIdentity:
    """The place that a sink writes to, without secrets.

    Attributes:
        kind: name of the sink's class. For a recorded text without a place, the whole text.
        place: parts such as `("s3://lake/out",)` or `("host:5432/db", "public.flights")`; (): unknown.
        options: other properties for readers, by name: texts, numbers and lists. They are not part of the place.
    """

    kind: str
    place: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.place:
            return self.kind
        options = (f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.kind}({', '.join([*map(repr, self.place), *options])})"

    @property
    def plain_place(self) -> tuple[str, ...]:
        """The place without the connecting user and without a trailing slash."""
        return tuple((text if "://" in text else text.rpartition("@")[2]).rstrip("/") for text in self.place)


def recorded_identity(text: str) -> SinkIdentity:
    """Parse the text of an identity in a log or pinned graph, from any version and class of sink. A text of another
    form gives an identity without a place."""
    try:
        # The text is a Python call. Parsing it and evaluating only literals runs no code from the log.
        call = ast.parse(text, mode="eval").body
        if isinstance(call, ast.Call) and call.args:
            place = tuple(str(ast.literal_eval(argument)) for argument in call.args)
            options = {option.arg: _value(option.value) for option in call.keywords if option.arg is not None}
            return SinkIdentity(ast.unparse(call.func), place, options)
    except (SyntaxError, ValueError):
        pass
    return SinkIdentity(text)


def is_same_place(one: SinkIdentity, other: SinkIdentity, resolve: Callable[[str], str] = posixpath.normpath) -> bool:
    """Return whether two sinks write to the same place in any spelling, or one writes into a folder of the other.

    A partition is such a folder. Identities without a place must be equal in everything else.

    Args:
        resolve: normalises a local path; in the driver it follows links.
    """
    if one == other:
        return True
    here, there = (
        tuple(_normalised(text, resolve) for text in _with_server_first(i.plain_place)) for i in (one, other)
    )
    if len(here) == len(there) == 1 and "/" in here[0]:
        return _is_in(here[0], there[0]) or _is_in(there[0], here[0])
    return here != () and here == there


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _with_server_first(place: tuple[str, ...]) -> tuple[str, ...]:
    """Normalise the server of a database table: lower case, without the default port, with one name for this host."""
    if len(place) != 2 or "://" in place[0]:
        return place
    host, slash, database = place[0].rpartition("/")
    host = host.lower().removesuffix(_POSTGRES_PORT)
    return f"{'localhost' if host in _THIS_HOST else host}{slash}{database}", place[1]


def _normalised(text: str, resolve: Callable[[str], str]) -> str:
    """Normalise a path or URL, so that all spellings are equal. Returns any other text unchanged."""
    # fsspec chains file systems with `::`; the last part is the place of the files.
    text = text.rpartition("::")[2]
    scheme, is_url, rest = text.partition("://")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    if is_url and scheme != "file":
        return f"{scheme}://{posixpath.normpath(rest)}"
    path = rest if is_url else text
    return resolve(f"/{path.strip('/')}") if path.startswith("/") else text


def _is_in(path: str, folder: str) -> bool:
    # With the slashes, or `/data/out2` would count as a folder in `/data/out`.
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")
