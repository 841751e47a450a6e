"""The extras of the distribution, and the error for a package of an extra that is not installed.

`pip install tidegate` installs the client. The runtime, the Airflow provider and each connector have their own extra.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder

from tidegate.errors import MissingExtraError

RUNTIME = "spark"
"""Name of the extra with the runtime."""
PACKAGES = {
    RUNTIME: ("numba", "numpy", "pyarrow", "pyspark"),
    "airflow": ("airflow",),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "kafka": ("confluent_kafka", "fastavro", "google.protobuf"),
    "postgres": ("psycopg",),
    "rocksdb": ("rocksdict",),
    "s3": ("s3fs",),
}
"""Import names of the packages that each extra installs. A test compares them with setup.cfg."""


def distribution(extra: str) -> str:
    """Return the distribution with an extra, in the form that pip accepts: `tidegate[spark]`."""
    return f"tidegate[{extra}]"


def installation(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "{distribution(extra)}"'


@contextlib.contextmanager
def extra_required_by(what: str) -> Iterator[None]:
    """Replace a failed import in this context by an error that names the missing extra.

    If no extra installs the missing module, the original ModuleNotFoundError is raised: the mistake is elsewhere.

    Args:
        what: the verb, class or sink that the user called, for the error.

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
        absent = {package, *missing_packages(PACKAGES[extra])}
        raise _missing(what, extra, not_installed(sorted(absent))) from None


def require_runtime(what: str, *, apart_from: Collection[str] = ()) -> None:
    """Check that the packages of the runtime are installed, without importing them.

    Args:
        what: the verb or class that needs the runtime, for the error.
        apart_from: packages that are not checked because they come from elsewhere: spark-submit brings pyspark.

    Raises:
        MissingExtraError: a package is missing, or pyspark-client, which cannot start Spark, is in pyspark's place.
    """
    absent = missing_packages([package for package in PACKAGES[RUNTIME] if package not in apart_from])
    if absent:
        raise _missing(what, RUNTIME, not_installed(absent))
    if "pyspark" not in apart_from and not _starts_spark():
        raise _missing(what, RUNTIME, "pyspark-client is installed instead of pyspark")


def missing_packages(names: Collection[str]) -> list[str]:
    """Return the packages of these import names that are not installed, without importing any."""
    from importlib.util import find_spec  # here, because clients that only read job directories do not need it

    return [name for name in names if find_spec(name) is None]


def not_installed(names: Collection[str]) -> str:
    """Return the cause of an error about missing packages."""
    return f"the package{'s' * (len(names) > 1)} {', '.join(names)} {'are' if len(names) > 1 else 'is'} not installed"


def _starts_spark() -> bool:
    """Check that this is the full pyspark. pyspark-client has the same module name but cannot start Spark.

    Slots find pyspark in a zip file, so this asks Python's finders instead of the file system.
    """
    from importlib.util import find_spec  # as above

    pyspark = find_spec("pyspark")
    places = pyspark.submodule_search_locations if pyspark is not None else None
    return PathFinder.find_spec("pyspark.core", places) is not None


def _missing(what: str, extra: str, cause: str) -> MissingExtraError:
    needs = "the runtime" if extra == RUNTIME else f"the extra {extra!r}"
    return MissingExtraError(f"{what} needs {needs}", cause=cause, remedy=f"Run: {installation(extra)}")
