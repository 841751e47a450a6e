"""Building a pipeline before it is submitted, so that a mistake in it leaves nothing behind in the job directory."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from tidegate.contract.artifact import pack, resolve_pipeline
from tidegate.contract.options import JobOptions


def validate(pipeline: str, code_root: str | None, arguments: Mapping[str, Any], options: JobOptions) -> None:
    """Build the pipeline from what would be pinned of it, and plan it, as the driver will. What the user's code prints
    goes to standard error.

    Raises:
        PipelineError: the code is not there, or the pipeline cannot be built or planned from it, or needs snapshots
            that the options turn off.
    """
    path, target = resolve_pipeline(pipeline, code_root)
    from tidegate.coordinator.checkpoint_mode import check_checkpoint_mode
    from tidegate.pipeline.load import load_pipeline
    from tidegate.plan.execution import plan

    with tempfile.TemporaryDirectory(prefix="tidegate-check-") as folder, contextlib.redirect_stdout(sys.stderr):
        for name, content in pack(path).files:
            file = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as copy:
                copy.write(content)
        graph = load_pipeline(folder, target, arguments)
        plan(graph, options.parallelism, options.max_parallelism)
        check_checkpoint_mode(graph, options)
