"""Check the options `checkpoint_mode` and `commit` against a pipeline, and choose defaults (S3.3, S7.3, S7.8). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tidegate.connectors.interface import WrittenBySpark
from tidegate.errors import PipelineError
from tidegate.jobs.options import JobOptions, format_duration
from tidegate.plan.job_graph import JobGraph

DEFAULT_INTERVAL = timedelta(minutes=1)
"""Time between checkpoints of an unbounded job whose options name no interval. Short enough that a failure repeats
little work, long enough that the cost of checkpoints is negligible."""


def options_in_effect(options: JobOptions, graph: JobGraph, recorded: Mapping[str, Any]) -> JobOptions:
    """Return the options of a submission, with defaults for options that the submission leaves open (S1.1, S9.1).

    Args:
        recorded: the defaults that an earlier driver of this submission chose; empty when there was none. They are
            kept, so that all drivers of a submission use the same options.
    """
    unbounded = any(node.source is not None and node.source.boundedness == "unbounded" for node in graph.nodes)
    takes_any = options.checkpoint_mode != "off" and options.execution_mode == "streaming"
    chosen = {
        "checkpoint_interval": format_duration(DEFAULT_INTERVAL) if unbounded and takes_any else None,
        "restart_attempts": options.restart_attempts,
    }
    named = {name: recorded.get(name, chosen[name]) for name in options.left_open}
    return JobOptions.from_mapping({**options.to_mapping(), **named})


def check_checkpoint_mode(graph: JobGraph, options: JobOptions) -> None:
    """Refuse two-phase-commit sinks in a job without snapshots: their output would never be committed.

    Raises:
        PipelineError: the pipeline has such sinks; the message names them.
    """
    if options.checkpoint_mode != "off":
        return
    sinks = [node.uid for node in graph.nodes if node.sink is not None and node.sink.two_phase]
    if sinks:
        raise PipelineError(
            "checkpoint_mode is 'off', but the pipeline has sinks that commit with a snapshot",
            where=f"sinks {', '.join(sinks)}",
            cause="without snapshots their output never becomes visible",
            remedy="Use checkpoint_mode exactly_once or at_least_once, or sinks that write immediately",
        )


def check_commit(graph: JobGraph, options: JobOptions) -> None:
    """Refuse a commit gate in a pipeline without a two-phase-commit sink: the gate would have nothing to delay.

    Raises:
        PipelineError: the pipeline has no such sink; the message names the sinks that it has.
    """
    if options.commit == "on_request" and not any(n.sink is not None and n.sink.two_phase for n in graph.nodes):
        raise PipelineError(
            "commit is 'on_request', but no sink of the pipeline commits in two phases",
            where=f"sinks {', '.join(node.uid for node in graph.nodes if node.sink is not None)}",
            cause="these sinks write immediately, before output can be approved or rejected",
            remedy="Use a sink that stages its output, such as Parquet, or leave commit at its default",
        )


def check_sink_modes(graph: JobGraph, options: JobOptions) -> None:
    """Refuse sinks written by Spark in streaming jobs and in jobs with a commit gate.

    With a gate, the commit may happen in a process that has no Spark.

    Raises:
        PipelineError: the pipeline has such sinks; the message names them.
    """
    sinks = [n for n in graph.nodes if isinstance(n.sink, WrittenBySpark)]
    if not sinks or (options.execution_mode == "batch" and options.commit == "automatic"):
        return
    gated = options.execution_mode == "batch"
    raise PipelineError(
        "sinks that Spark writes cannot wait for approval or rejection (commit='on_request')"
        if gated
        else "sinks that Spark writes work in batch mode only",
        where=", ".join(f"sink {node.uid!r} at {node.location}" for node in sinks),
        remedy="Leave commit at its default, or use a sink such as Parquet"
        if gated
        else "Set execution_mode=batch, or use a sink such as Parquet",
    )


def needs_final_checkpoint(options: JobOptions, commit_only: int | None) -> bool:
    """Return whether a subtask that has ended must wait for a final snapshot, or for a message that none is coming
    (S7.3).

    False in runs that take no snapshots: the subtask finishes immediately. In any other run that would race with a
    stop.

    Args:
        commit_only: id of the stop-savepoint, if the run only commits one.
    """
    return commit_only is None and options.checkpoint_mode != "off"
