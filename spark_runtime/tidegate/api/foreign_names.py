"""Names of Spark, Flink, Beam and pandas that users type on streams, and the calls to use instead."""

from __future__ import annotations

import difflib
from typing import NoReturn

_FUNCTION = "map_in_arrow(function, schema=...): a function of record batches"
_EXPRESSIONS = 'with_columns(name=pc.field("column") * 2) for expressions, or ' + _FUNCTION
_GROUP = 'group_by("column")'
_WINDOW = '.window(tumbling("1 h")).agg(...) after group_by(...), or window_all(...)'
_WRITE = 'write(sink, uid="..."), which writes when the job runs: building a pipeline computes nothing'
_RUN = "tidegate.testing.run(...) on a few rows, or write(sink): building a pipeline computes nothing"
_STATE = 'group_by("column").process(KeyedProcess()), or .transform_with_state(...)'
_UNNEST = "map_in_arrow(function, schema=...) with pc.list_parent_indices and pc.list_flatten"

STREAM_NAMES = {
    **dict.fromkeys(("map", "apply", "Map", "ParDo", "pipe", "applymap", "transform"), _EXPRESSIONS),
    **dict.fromkeys(("flat_map", "flatMap", "FlatMap", "map_partitions", "mapPartitions", "mapInPandas"), _FUNCTION),
    **dict.fromkeys(("map_in_pandas", "mapInArrow", "map_batches", "foreach_partition", "foreachPartition"), _FUNCTION),
    **dict.fromkeys(("explode", "unnest"), _UNNEST),
    **dict.fromkeys(("foreach", "foreachBatch", "forEach", "writeStream", "add_sink", "sink_to", "sinkTo"), _WRITE),
    **dict.fromkeys(("addSink", "to_parquet", "to_json", "to_csv", "save", "insertInto", "saveAsTable"), _WRITE),
    **dict.fromkeys(
        ("withColumn", "withColumns", "assign", "with_column"), 'with_columns(name=pc.field("column") * 2)'
    ),
    **dict.fromkeys(("withColumnRenamed", "rename"), 'select("kept", new_name=pc.field("old_name"))'),
    **dict.fromkeys(("drop", "alias"), 'select("kept", "kept_too"): the columns to keep'),
    **dict.fromkeys(("where", "query", "Filter"), 'filter(pc.field("delay") > 0)'),
    **dict.fromkeys(("groupBy", "groupby", "GroupByKey", "key_by", "keyBy", "partition_by", "partitionBy"), _GROUP),
    **dict.fromkeys(("GroupBy", "group", "reduceByKey", "reduce", "aggregate", "sum", "count"), _GROUP + ".agg(...)"),
    **dict.fromkeys(("window", "windowAll", "WindowInto", "resample", "rolling"), _WINDOW),
    **dict.fromkeys(("withWatermark", "assign_timestamps_and_watermarks"), 'with_watermark("time", "10 min")'),
    "assignTimestampsAndWatermarks": 'with_watermark("time", "10 min")',
    **dict.fromkeys(("process", "transformWithState", "transform_with_state", "mapGroupsWithState"), _STATE),
    **dict.fromkeys(("applyInPandasWithState", "transformWithStateInPandas"), _STATE),
    **dict.fromkeys(("toDF", "to_df", "toPandas", "to_pandas", "collect", "show", "head", "take", "first"), _RUN),
    **dict.fromkeys(("limit", "print", "isEmpty", "execute", "start", "awaitTermination"), _RUN),
    **dict.fromkeys(("unionByName", "unionAll", "concat", "append", "merge_streams"), "union(other)"),
    **dict.fromkeys(("merge", "coGroup", "cogroup", "co_group", "CoGroupByKey"), 'join(other, on="column")'),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "distinct"), 'deduplicate("column", within="1 h")'),
    "dropDuplicatesWithinWatermark": 'deduplicate("column", within="1 h")',
    **dict.fromkeys(("getSideOutput", "get_side_output"), 'side_output("name")'),
    **dict.fromkeys(
        ("orderBy", "sort", "sort_values"), 'group_by("column").top_n(10, by="column"): a stream has no end'
    ),
    **dict.fromkeys(("columns", "dtypes", "printSchema"), "schema, as in stream.schema.names"),
    **dict.fromkeys(("cache", "persist", "checkpoint"), "option checkpoint_interval: state is kept without it"),
    **dict.fromkeys(("async_io", "unordered_wait", "orderedWait"), "map_async(function, schema=...)"),
}
"""Name -> the call to use instead."""


def unknown_name_error(holder: object, name: str, what: str) -> NoReturn:
    """Raise AttributeError for a name that `holder` does not have, with the call to use instead or the nearest name.

    Args:
        what: description of the holder, such as "a stream".
    """
    message = f"{what} has no {name!r}"
    # Python and notebooks look for such names on any object. They need only the AttributeError.
    if not name.startswith("_"):
        instead = STREAM_NAMES.get(name) if what == "a stream" else None
        own = [known for known in dir(type(holder)) if not known.startswith("_")]
        near = difflib.get_close_matches(name, own, n=1)
        if instead is not None:
            message += f". Use {instead}"
        elif near:
            message += f". Did you mean {near[0]!r}?"
        else:
            message += f". It has {', '.join(own)}"
    raise AttributeError(message, name=name, obj=holder)
