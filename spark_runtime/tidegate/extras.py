"""The extras of the distribution, and the error for a package that one of them would have installed.

`pip install tidegate` is the client. The runtime, the Airflow provider and each connector have an extra of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec, PathFinder

from tidegate.errors import MissingExtraError

RUNTIME = "spark"
"""The extra of the runtime."""
PACKAGES = {
    RUNTIME: ("numba", "numpy", "pyarrow", "pyspark"),
    "airflow": ("airflow",),
    "delta": ("deltalake",),
    "postgres": ("psycopg",),
    "rocksdb": ("rocksdict",),
    "s3": ("s3fs",),
}
"""Extra -> import names of the packages that it installs. A test compares it with setup.cfg."""


def distribution(extra: str) -> str:
    """The distribution with an extra, as pip takes it."""
    return f"tidegate[{extra}]"


def installation(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "{distribution(extra)}"'


@contextlib.contextmanager
def extra_required_by(what: str) -> Iterator[None]:
    """Turn an import within the context that fails for want of an extra into the error that names it.

    A module that no extra installs passes as it is: the mistake is elsewhere.

    Args:
        what: what the user asked for: a verb, a class, a sink.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra, packages in PACKAGES.items() if package in packages), None)
        if extra is None:
            raise
        raise _missing(what, extra, f"the package {package} is not installed") from None


def require_runtime(what: str, *, apart_from: Collection[str] = ()) -> None:
    """Check that the packages of the runtime are installed. Imports none of them.

    Args:
        what: what needs the runtime, for the error.
        apart_from: packages that come from elsewhere: spark-submit brings pyspark.

    Raises:
        MissingExtraError: one is missing, or pyspark is pyspark-client, which has no Spark in it.
    """
    from importlib.util import find_spec  # clients that only read do without

    for package in PACKAGES[RUNTIME]:
        if package in apart_from:
            continue
        found = find_spec(package)
        if found is None:
            raise _missing(what, RUNTIME, f"the package {package} is not installed")
        if package == "pyspark" and not _starts_spark(found):
            raise _missing(what, RUNTIME, "pyspark-client is installed in the place of pyspark")


def _starts_spark(pyspark: ModuleSpec) -> bool:
    """Whether it is the whole pyspark: pyspark-client has the same name, without the part that starts Spark.

    Slots find pyspark in a zip, so this asks Python's finders, not the disk.
    """
    return PathFinder.find_spec("pyspark.core", pyspark.submodule_search_locations) is not None


def _missing(what: str, extra: str, cause: str) -> MissingExtraError:
    needs = "the runtime" if extra == RUNTIME else f"the extra {extra!r}"
    return MissingExtraError(f"{what} needs {needs}", cause=cause, remedy=f"Run: {installation(extra)}")
