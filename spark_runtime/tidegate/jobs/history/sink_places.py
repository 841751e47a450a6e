"""Where sinks write, read from what they say of themselves and the log keeps: `Kind(place, ..., option=...)`.

The arguments without a name are the place. A sink that says nothing of the kind has a place that nobody knows. Pure.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable

_SAME_SCHEME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "local": "file"}
"""Names that file systems and Spark have for one kind of store."""
_POSTGRES_PORT = ":5432"
_THIS_HOST = ("127.0.0.1", "::1")


def place_of(description: str) -> tuple[str, ...]:
    """The place, such as `("s3://lake/out",)` or `("host:5432/db", "flights")`: without the user who connects, and
    without a trailing slash; () when it is not told."""
    try:
        call = ast.parse(description, mode="eval").body
        if not isinstance(call, ast.Call):
            return ()
        arguments = [str(ast.literal_eval(argument)) for argument in call.args]
    except (SyntaxError, ValueError):
        return ()
    return tuple(_plain(text) for text in arguments)


def is_same_place(one: str, other: str, resolve: Callable[[str], str] = posixpath.normpath) -> bool:
    """Whether two sinks write to the same place however it is spelled, or one into a folder of the other's, as a
    partition is. Where that is not told they do when they say the same.

    Args:
        resolve: the one name of a local path; in the driver it follows links.
    """
    if one == other:
        return True
    here, there = (tuple(_spelled(text, resolve) for text in _server_first(place_of(said))) for said in (one, other))
    if len(here) == len(there) == 1 and "/" in here[0]:
        return _is_in(here[0], there[0]) or _is_in(there[0], here[0])
    return here != () and here == there


def _plain(text: str) -> str:
    return (text if "://" in text else text.rpartition("@")[2]).rstrip("/")


def _server_first(place: tuple[str, ...]) -> tuple[str, ...]:
    """Of a table of a database the server without what goes without saying."""
    if len(place) != 2 or "://" in place[0]:
        return place
    host, slash, database = place[0].rpartition("/")
    host = host.lower().removesuffix(_POSTGRES_PORT)
    return f"{'localhost' if host in _THIS_HOST else host}{slash}{database}", place[1]


def _spelled(text: str, resolve: Callable[[str], str]) -> str:
    """A path or URL as all its spellings have it; any other text as it is."""
    text = text.rpartition("::")[2]
    scheme, is_url, rest = text.partition("://")
    scheme = _SAME_SCHEME.get(scheme.lower(), scheme.lower())
    if is_url and scheme != "file":
        return f"{scheme}://{posixpath.normpath(rest)}"
    path = rest if is_url else text
    return resolve(f"/{path.strip('/')}") if path.startswith("/") else text


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")
