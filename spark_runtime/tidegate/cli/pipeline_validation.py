"""Build a pipeline before it is submitted, so that a wrong pipeline changes nothing in the job directory."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.connectors.found_schema import FoundSchemas, found_schemas
from tidegate.coordinator.checkpoint_mode import check_checkpoint_mode, check_commit, check_sink_modes
from tidegate.coordinator.recovery.fresh_start import check_fresh_start, check_inputs, existing_output
from tidegate.jobs.artifacts.artifact import pack, resolve_pipeline
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RelativePaths
from tidegate.plan.batch_plan import plan_batch
from tidegate.plan.execution_plan import ExecutionPlan, make_execution_plan
from tidegate.plan.job_graph import JobGraph


def validate_pipeline(
    pipeline: str,
    code_root: str | None,
    arguments: Mapping[str, Any],
    options: JobOptions,
    *,
    starts: str = "",
    paths: RelativePaths | None = None,
    pinned: PinnedGraph | None = None,
) -> tuple[tuple[str, str], ...]:
    """Build and plan the pipeline as the driver will do, from the code that a submission would pin. See `build_plan`.

    Args:
        starts: id of a job that would start with this pipeline without a snapshot. Each sink then checks whether it
            may write to its target. Empty: the pipeline does not start a job in this way.
        paths: folder of relative paths; None: the working directory.
        pinned: graph of an earlier submission. Its sources keep the schemas that they found then, also when newer
            input files differ.

    Returns:
        (uid, text) for each file sink whose target has files: what a fresh start does with these files.
    """
    schemas = None if pinned is None else found_schemas(pinned.graph)
    with build_plan(pipeline, code_root, arguments, options, paths, schemas) as (graph, _):
        if starts:
            check_inputs(graph)
            check_fresh_start(graph, starts)
        return tuple(existing_output(graph))


@contextlib.contextmanager
def build_plan(
    pipeline: str,
    code_root: str | None,
    arguments: Mapping[str, Any],
    options: JobOptions,
    paths: RelativePaths | None = None,
    schemas: FoundSchemas | None = None,
) -> Iterator[tuple[JobGraph, ExecutionPlan]]:
    """Build and plan a pipeline as the driver will do, from the code that a submission would pin.

    The code stays importable within the context. Everything that the user's code prints goes to standard error.

    Args:
        paths: folder of relative paths; None: the working directory.
        schemas: schemas that the job's sources found earlier (S5.5). A source without one finds its schema in its
            input.

    Raises:
        PipelineError: the code does not exist, the pipeline cannot be built or planned, it needs snapshots that the
            options turn off, or it does not fit the execution mode.
    """
    path, target = resolve_pipeline(pipeline, code_root)
    with tempfile.TemporaryDirectory(prefix="tidegate-check-") as folder, contextlib.redirect_stdout(sys.stderr):
        for name, content in pack(path).files:
            file = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as copy:
                copy.write(content)
        graph = load_pipeline(folder, target, arguments, paths=paths, schemas=schemas)
        execution = make_execution_plan(graph, options.parallelism, options.max_parallelism)
        if options.execution_mode == "batch":
            allowed = options.allow_mode_dependent
            plan_batch(graph, options.parallelism, options.max_parallelism, allow_mode_dependent=allowed)
        else:
            check_checkpoint_mode(graph, options)
        check_commit(graph, options)
        check_sink_modes(graph, options)
        yield graph, execution
