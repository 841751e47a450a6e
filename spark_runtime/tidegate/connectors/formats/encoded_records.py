"""Encoded records: errors of values without an encoding, and arrays of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError

MAX_BATCH_BYTES = 2**31 - 1
"""Most bytes of the records of one batch: `binary` arrays have 32-bit offsets."""


class CannotEncodeError(ValueError):
    """A value or type has no encoding. Args: path: the field, `a.b` in a record. reason: without the value."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"field {path!r}: {reason}")
        self.path, self.reason = path, reason

    def as_pipeline_error(self, where: str) -> PipelineError:
        """Return the error for users."""
        return PipelineError(
            "the rows cannot be encoded",
            where=where,
            cause=str(self),
            remedy="Cast or filter the rows before the sink, or change the schema that they are written with",
        )


def binary_array(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], where: str) -> pa.Array:
    """Return the `binary` array whose value i is data[offsets[i]:offsets[i + 1]].

    Raises:
        PipelineError: there are more than `MAX_BATCH_BYTES`.
    """
    if offsets[-1] > MAX_BATCH_BYTES:
        raise PipelineError(
            "the records of one batch are too large",
            where=where,
            cause=f"they have {offsets[-1]} bytes, the limit is {MAX_BATCH_BYTES}",
            remedy="Write smaller values, or store large values elsewhere and their place in the record",
        )
    buffers: list[Any] = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
