"""Partitions of a data source's reader. A split holds the number of its partition, because partitions are objects.

Spark pickles partitions. tidegate does not read pickled objects from storage, so each reader asks the data source for
the partitions again, as Spark does after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import InputPartition

from tidegate.errors import PipelineError


def partitions_of(reader: Any, where: str, *offsets: Any) -> list[Any]:
    """Return the partitions of a batch reader, or of a stream reader between two offsets.

    Raises:
        PipelineError: they are not a sequence of InputPartition.
    """
    try:
        planned = list(reader.partitions(*offsets))
    except (NotImplementedError, PySparkNotImplementedError):
        if offsets:
            raise
        planned = []
    if not offsets and not planned:
        return [InputPartition(None)]  # as Spark does
    if any(not isinstance(partition, InputPartition) for partition in planned):
        kinds = sorted({type(partition).__name__ for partition in planned})
        raise PipelineError(
            "partitions() of a Python data source must return InputPartitions",
            where=where,
            cause=f"it returned {', '.join(kinds)}",
            remedy="Derive the class of the partitions from pyspark.sql.datasource.InputPartition",
        )
    return planned


def partition_of(reader: Any, where: str, data: Mapping[str, Any]) -> Any:
    """Return the partition that `Split.data` describes.

    Raises:
        PipelineError: the data source no longer plans as many partitions.
    """
    offsets = (data["start"], data["end"]) if "start" in data else ()
    planned = partitions_of(reader, where, *offsets)
    if len(planned) != data["of"]:
        raise PipelineError(
            "a Python data source has planned other partitions than before",
            where=where,
            cause=f"there were {data['of']} partitions, and now there are {len(planned)}",
            remedy="partitions() must return the same for the same offsets; for a batch, as long as the job runs",
        )
    return planned[data["index"]]
