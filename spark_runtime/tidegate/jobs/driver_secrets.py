"""Secrets that a driver's process gets as environment variables, from the process that starts it.

A submission names the variables, each with the place where its submitter reads the value: `conn:ID/FIELD`, a field of
an Airflow connection. Only names and places are stored. The values are read by an Airflow worker when it starts a
driver, and passed in the environment of the driver's process. The pipeline refers to them as `secret:env/NAME`.

Any other process that starts a driver for such a submission needs the variables in its own environment, or is refused.
The places are for readers: nothing resolves a place because a job directory names it, so that write access to a job
directory gives no access to connections.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import EnvironmentProblemError, OptionError

SCHEME = "conn:"
FORMS = "conn:ID/password, conn:ID/login or conn:ID/extra/KEY"
RESERVED_NAMES = frozenset({"HOME", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"})
RESERVED_PREFIXES = ("AIRFLOW_", "JAVA_", "PYSPARK_", "PYTHON", "SPARK_", "TIDEGATE_")
"""Variables that a driver, Python, Spark or Airflow reads itself. A secret must not replace them."""
OTHER_FORMS = (
    "Use secret:file/PATH, or secret:env/NAME with the variable in the environment of the process that runs there"
)
"""Remedy where an Airflow connection cannot be used: the two other forms."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"conn:(?P<id>\S+?)/(?:(?P<field>login|password)|extra/(?P<key>\S+))")


@dataclass(frozen=True, slots=True)
class ConnectionField:
    """A field of an Airflow connection.

    Attributes:
        conn_id: id of the connection.
        field: "login", "password" or "extra".
        key: with "extra": key of the connection's extra.
    """

    conn_id: str
    field: str
    key: str = ""


def connection_field(name: str, place: object) -> ConnectionField:
    """Parse the place of a secret.

    Raises:
        OptionError: it is none of `FORMS`. The error does not contain it: it may be the secret itself.
    """
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        raise OptionError(
            "the secret is not a field of an Airflow connection",
            where=f"secrets[{name!r}]",
            cause="its value is not shown, because it may be the secret itself",
            remedy=f"Write {FORMS}",
        )
    return ConnectionField(found["id"], found["field"] or "extra", found["key"] or "")


def check_driver_secrets(secrets: Mapping[str, str] | None, *, where: str = "secrets") -> None:
    """Check names and places. Raises OptionError that names the variable, but not its place."""
    if secrets is not None and not isinstance(secrets, Mapping):
        raise OptionError(
            f"{where} must be a mapping, not {type(secrets).__name__}",
            where=where,
            remedy='Pass a mapping such as {"KAFKA_PASSWORD": "conn:my_kafka/password"}',
        )
    for name, place in (secrets or {}).items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise OptionError(
                f"{name!r} is not a name of an environment variable",
                where=where,
                remedy="Use letters, digits and underscores",
            )
        if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES):
            raise OptionError(
                f"the variable {name} cannot hold a secret",
                where=where,
                cause="the driver, Python, Spark or Airflow reads the variable itself",
                remedy="Choose another name",
            )
        connection_field(name, place)


def require_driver_secrets(secrets: Mapping[str, str], environment: Mapping[str, str], *, where: str) -> None:
    """Check that a driver would get all secrets of its submission.

    Args:
        secrets: `Spec.secrets`.
        environment: environment variables of the driver.
        where: job and submission, for the error.

    Raises:
        EnvironmentProblemError: a variable is missing.
    """
    missing = [f"{name} ({place})" for name, place in sorted(secrets.items()) if name not in environment]
    if missing:
        raise EnvironmentProblemError(
            f"the driver is not started, because it would lack the secrets {', '.join(missing)}",
            where=where,
            cause="Airflow reads them from connections, and passes them to the drivers that it starts. The process "
            "that starts the driver now does not have them",
            remedy="Start the driver from Airflow: retry, restore or supervise the job with secrets=. Or set the "
            "environment variables for this process",
        )
