"""What `checkpoint_mode` and `commit` ask of a pipeline and of the end of a job (S3.3, S7.3, S7.8). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from tidegate.connectors.interface import WrittenBySpark
from tidegate.errors import PipelineError
from tidegate.jobs.options import JobOptions, format_duration
from tidegate.plan.job_graph import JobGraph

DEFAULT_INTERVAL = timedelta(minutes=1)
"""Between checkpoints of an unbounded job that names no interval: little work to repeat after a failure, and seldom
enough to cost next to nothing."""


def options_in_effect(options: JobOptions, graph: JobGraph, recorded: Mapping[str, Any]) -> JobOptions:
    """The options that a submission runs with, once its pipeline is known: what it leaves open is chosen (S1.1, S9.1).

    Args: recorded: what an earlier driver of the submission has chosen; empty: there was none.
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
    """A job without snapshots cannot commit in two phases: nothing would ever permit it.

    Raises:
        PipelineError: names the sinks.
    """
    if options.checkpoint_mode != "off":
        return
    sinks = [node.uid for node in graph.nodes if node.sink is not None and node.sink.two_phase]
    if sinks:
        raise PipelineError(
            "checkpoint_mode is off, but the pipeline has sinks that commit with a snapshot",
            where=f"sinks {', '.join(sinks)}",
            cause="what they write would never become visible",
            remedy="Use checkpoint_mode exactly_once or at_least_once, or sinks that write at once",
        )


def check_commit(graph: JobGraph, options: JobOptions) -> None:
    """A commit gate needs something to hold back.

    Raises:
        PipelineError: names the sinks.
    """
    if options.commit == "on_request" and not any(n.sink is not None and n.sink.two_phase for n in graph.nodes):
        raise PipelineError(
            "commit is 'on_request', but no sink of the pipeline commits in two phases",
            where=f"sinks {', '.join(node.uid for node in graph.nodes if node.sink is not None)}",
            cause="what they write is visible at once, whatever the verdict",
            remedy="Use a sink that stages, such as Parquet, or leave commit at its default",
        )


def check_sink_modes(graph: JobGraph, options: JobOptions) -> None:
    """Sinks for batch jobs are of no use in streaming, nor behind a commit gate, which may open with no Spark there.

    Raises:
        PipelineError: names the sinks.
    """
    sinks = [n for n in graph.nodes if isinstance(n.sink, WrittenBySpark)]
    if not sinks or (options.execution_mode == "batch" and options.commit == "automatic"):
        return
    gated = options.execution_mode == "batch"
    raise PipelineError(
        "these sinks cannot wait for a verdict" if gated else "these sinks work in batch mode only",
        where=", ".join(f"sink {node.uid!r} at {node.location}" for node in sinks),
        remedy="Leave commit at its default, or use a sink such as Parquet"
        if gated
        else "Set execution_mode=batch, or use a sink such as Parquet",
    )


def needs_final_checkpoint(options: JobOptions, commit_only: int | None) -> bool:
    """Whether a subtask that has ended waits for a snapshot, or for the word that none is to come (S7.3). Else it
    finishes at once, which only a run that takes no snapshot can afford: in any other a stop would race with it.

    Args:
        commit_only: the stop-savepoint that the run only commits.
    """
    return commit_only is None and options.checkpoint_mode != "off"
