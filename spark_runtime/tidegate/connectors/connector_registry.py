"""Registry of connectors by name: the built-in ones, and those that other distributions register as entry points.

A built-in connector is one line of `BUILT_IN`; the package `tidegate` takes its public connector names from it. A
distribution registers its connector as an entry point of the group `tidegate.connectors`, `Name = module:Class`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.entry_points import broken_extension, load_entry_point
from tidegate.errors import OptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "tidegate.connectors"
"""Group of the entry points."""

_INTERFACE = "tidegate.connectors.interface"

BUILT_IN: Mapping[str, str] = {
    "Csv": "tidegate.connectors.files.sink.text_sinks:Csv",
    "DataGen": "tidegate.connectors.datagen:DataGen",
    "Delta": "tidegate.connectors.delta.delta_sink:Delta",
    "DeltaTable": "tidegate.connectors.delta.source.delta_source:DeltaTable",
    "Discard": "tidegate.connectors.discard:Discard",
    "Files": "tidegate.connectors.files.source.files:Files",
    "Iceberg": "tidegate.connectors.iceberg.iceberg_sink:Iceberg",
    "IcebergTable": "tidegate.connectors.iceberg.iceberg_source:IcebergTable",
    "JsonLines": "tidegate.connectors.files.sink.text_sinks:JsonLines",
    "Kafka": "tidegate.connectors.kafka.source.kafka_source:Kafka",
    "KafkaSink": "tidegate.connectors.kafka.sink.kafka_sink:KafkaSink",
    "Parquet": "tidegate.connectors.files.sink.parquet:Parquet",
    "Postgres": "tidegate.connectors.postgres.postgres_sink:Postgres",
    "PostgresTable": "tidegate.connectors.postgres.source.postgres_table:PostgresTable",
    "Replay": "tidegate.connectors.replay:Replay",
    "PySparkSink": "tidegate.connectors.pyspark.pyspark_sink:PySparkSink",
    "PySparkSource": "tidegate.connectors.pyspark.pyspark_source:PySparkSource",
    "SparkFrame": "tidegate.connectors.spark.spark_source:SparkFrame",
    "SparkTable": "tidegate.connectors.spark.spark_source:SparkTable",
    "SparkWriter": "tidegate.connectors.spark.spark_writer:SparkWriter",
}
"""Class name -> "module:Class". A module is imported when its connector is first used."""


def registered_connectors() -> list[str]:
    """Return the sorted names of the connectors that other installed distributions register. Imports none of them."""
    return sorted({point.name for point in _entry_points()} - BUILT_IN.keys())


def find_connector(name: str) -> type[Any]:
    """Return the class of a source or sink, such as `find_connector("Parquet")`. Imports its module.

    A built-in connector takes precedence over a registered one of the same name.

    Raises:
        OptionError: no connector has this name (the message suggests the nearest name), or several distributions
            register it.
        EnvironmentProblemError: the module cannot be imported, lacks the class, or has something else in its place.
    """
    points = [_built_in(name)] if name in BUILT_IN else [point for point in _entry_points() if point.name == name]
    if not points:
        names = [*BUILT_IN, *registered_connectors()]
        near = difflib.get_close_matches(name, names, n=1)
        raise OptionError(
            f"there is no connector {name!r}",
            cause=f"no installed distribution registers it as an entry point of the group {ENTRY_POINTS!r}",
            remedy=f"Did you mean {near[0]!r}?"
            if near
            else "Install the package with the connector, on this machine and on every executor",
        )
    places = sorted({point.value for point in points})
    if len(places) > 1:
        raise OptionError(
            f"several distributions register a connector {name!r}",
            cause=", ".join(places),
            remedy="Uninstall all of these distributions but one",
        )
    connector: type[Any] = load_entry_point(points[0], f"connector {name!r}")
    if name not in BUILT_IN and not _is_connector(connector):
        cause = "it is not a subclass of tidegate.connectors.interface.Source or Sink"
        raise broken_extension(points[0], f"connector {name!r}", "does not fit", cause)
    return connector


def _is_connector(found: object) -> bool:
    """Check the class by the names of its bases: the interface needs pyarrow, and the client has no pyarrow."""
    bases = found.__mro__ if isinstance(found, type) else ()
    return any(base.__module__ == _INTERFACE and base.__name__ in ("Source", "Sink") for base in bases)


def _built_in(name: str) -> EntryPoint:
    from importlib.metadata import EntryPoint  # slow to import; `import tidegate` does not need it

    return EntryPoint(name, BUILT_IN[name], ENTRY_POINTS)


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=ENTRY_POINTS))
