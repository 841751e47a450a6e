"""Checks the results of a user's process against the declared schema, and splits them into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.operators.declared_outputs import check_outputs
from tidegate.operators.stream_operator import Output, SideOutput
from tidegate.operators.user_functions.context import Batches, ProcessBase


class ProcessOutputCheck:
    """Checks the results of one process in one subtask."""

    def __init__(
        self, process: ProcessBase, schema: pa.Schema, side_outputs: Sequence[tuple[str, pa.Schema]], where: str
    ) -> None:
        """Args: schema, side_outputs: declared. where: operator and subtask, for errors."""
        self._process = process
        self._schema = schema
        self._side_outputs = dict(side_outputs)
        self._where = where

    def of(self, method: str, results: Batches) -> Iterator[Output]:
        """Return the batches of a result, without empty ones.

        Raises:
            PipelineError: an item is not a record batch or has another schema; names the line that returned it.
        """
        if results is None:
            return
        if isinstance(results, pa.RecordBatch | SideOutput) or not isinstance(results, Iterable):
            raise self._refused(
                method, results, f"the result is a {type(results).__name__}", "Yield pyarrow.RecordBatch objects"
            )
        for result in results:
            yield from check_outputs(
                result,
                self._schema,
                self._side_outputs,
                lambda cause, remedy: self._refused(method, results, cause, remedy),
            )

    def _refused(self, method: str, results: object, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"rows that {method} of process {type(self._process).__name__} returned do not match the declared schema",
            where=f"{self._where}, {_line(results, getattr(type(self._process), method))}",
            cause=cause,
            remedy=remedy,
        )


def _line(results: object, method: Any) -> str:
    """Return `file:line` of the `yield` at which a generator is suspended, else of the method."""
    if isinstance(results, GeneratorType) and results.gi_frame is not None:
        return f"{results.gi_code.co_filename}:{results.gi_frame.f_lineno}"
    code = method.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
