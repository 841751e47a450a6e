"""Conformance suite for formats: subclass it, define the format and some records, and pytest runs the tests.

Needs pytest and hypothesis. A format that passes decodes each record in the same way, whatever records are decoded with
it, and a bad record fails neither its neighbours nor the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder
from tidegate.connectors.found_schema import FoundSchema
from tidegate.errors import PipelineError
from tidegate.testing.conformance import Conformance

MOST_QUOTED_BYTES = 12
"""Bytes of a record that may be in a reason by chance, such as a name of the schema."""
LARGE_RECORDS = 20_000
"""Records of the large batch."""

_EVERYTHING = 10**6
_settings = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class FormatConformance(Conformance, ABC):
    """Subclass it, named `Test...`, and implement `make_format`, `good_records` and `bad_records`."""

    encodes = True
    """True if the format can encode the rows that it decodes. False: it is only read."""

    @abstractmethod
    def make_format(self) -> Format:
        """Return the format, a new object each time."""

    @abstractmethod
    def good_records(self) -> Sequence[bytes]:
        """Return the values of at least five records that can be decoded, at least two of them different."""

    @abstractmethod
    def bad_records(self) -> Sequence[bytes]:
        """Return the values of records that cannot be decoded, of each kind; none if every value can be decoded."""

    def key_of(self, value: bytes | None) -> bytes | None:
        """Return the key of a record, if the format uses keys. The default is no key."""
        return None

    def test_its_schema_stays_the_same(self) -> None:
        """Decoded batches have the schema that the format reports, also an empty one."""
        format_ = self.make_format()
        assert format_.schema() == format_.schema() == self.make_format().schema()
        decoder = format_.create_decoder()
        for values in (list(self.good_records()), []):
            batch = self._decoded(decoder, values).batch
            assert batch.schema.equals(format_.schema(), check_metadata=True)
            batch.validate(full=True)

    def test_it_is_described_in_one_line(self) -> None:
        """`explain()` shows the line."""
        assert self.make_format().describe() and "\n" not in self.make_format().describe()

    @_settings
    @given(st.data())
    def test_records_do_not_depend_on_their_neighbours(self, data: st.DataObject) -> None:
        """Any sequence of good, bad and missing records gives the rows and reasons of each alone."""
        known: list[bytes | None] = [*self.good_records(), *self.bad_records(), None]
        values = data.draw(st.lists(st.sampled_from(known), max_size=30))
        decoder = self.make_format().create_decoder()
        self._require_alone(decoder, values)

    def test_bad_records_are_named_and_leave_the_others(self) -> None:
        """Each bad record stands between good ones. Its reason does not quote it."""
        good, decoder = list(self.good_records()), self.make_format().create_decoder()
        rows = [len(self._decoded(decoder, [value]).batch) for value in good]
        assert all(rows)
        for bad in self.bad_records():
            values = [*good, bad, *good]
            found = self._decoded(decoder, values)
            assert [one.index for one in found.bad] == [len(good)], bad
            assert len(found.batch) == 2 * sum(rows)
            reason = found.bad[0].reason
            assert reason and not reason.endswith(".") and "\n" not in reason
            pieces = {bad[at : at + MOST_QUOTED_BYTES + 1] for at in range(len(bad) - MOST_QUOTED_BYTES)}
            assert not [piece for piece in pieces if piece in reason.encode()], reason

    @_settings
    @given(st.data())
    def test_any_bytes_are_decoded_or_refused(self, data: st.DataObject) -> None:
        """Random bytes, and damaged records, raise nothing and change no other record."""
        good = list(self.good_records())
        damaged = st.builds(_damaged, st.sampled_from(good), st.integers(0, 200), st.binary(max_size=4))
        values: list[bytes | None] = data.draw(st.lists(st.one_of(st.binary(max_size=60), damaged), max_size=8))
        self._require_alone(self.make_format().create_decoder(), [good[0], *values, good[1]])

    def test_fewer_columns_change_nothing_else(self) -> None:
        """A decoder of some columns gives the same rows, and refuses the same records."""
        format_ = self.make_format()
        names = format_.schema().names
        values = [*self.good_records(), *self.bad_records(), None, *self.good_records()]
        whole = self._decoded(format_.create_decoder(), values)
        for columns in (names[:0], names[:1], names[-1:], names[1:], names):
            part = self._decoded(self.make_format().create_decoder(columns), values)
            assert part.batch.schema.names == columns
            assert part.batch.equals(whole.batch.select(columns))
            assert (_records(part, len(values)), list(part.bad)) == (_records(whole, len(values)), list(whole.bad))

    def test_a_slice_is_decoded_like_a_copy(self) -> None:
        """Values that share the buffers of more values."""
        values = [*self.bad_records(), *self.good_records(), None, *self.good_records()]
        decoder = self.make_format().create_decoder()
        for begin in range(len(values)):
            sliced = self._decode(decoder, pa.array(values, pa.binary()).slice(begin), values[begin:])
            assert _facts(sliced, len(values) - begin) == _facts(
                self._decoded(decoder, values[begin:]), len(values) - begin
            )

    def test_a_large_batch_is_decoded(self) -> None:
        """Many records, with one bad record if there is one."""
        good, bad = list(self.good_records()), list(self.bad_records())[:1]
        values = [good[at % len(good)] for at in range(LARGE_RECORDS)]
        values[LARGE_RECORDS // 2 : LARGE_RECORDS // 2] = bad
        found = self._decoded(self.make_format().create_decoder(), values)
        assert [one.index for one in found.bad] == [LARGE_RECORDS // 2][: len(bad)]
        first = self._decoded(self.make_format().create_decoder(), good)
        assert found.batch.slice(0, len(first.batch)).equals(first.batch)

    def test_the_schema_that_it_found_is_used_again(self) -> None:
        """S5.5: after a restore, the format decodes as before."""
        format_ = self.make_format()
        schema = format_.schema()
        found = format_.found_schema()
        if found is None:
            return
        recorded = FoundSchema.from_json(found.to_json(), where="test")
        again = self.make_format().with_found_schema(recorded)
        assert again.schema() == schema
        values = list(self.good_records())
        decoded = self._decoded(again.create_decoder(), values)
        assert decoded.batch.equals(self._decoded(format_.create_decoder(), values).batch)

    def test_rows_that_it_encodes_are_decoded_again(self) -> None:
        """One value for each row, also of a slice."""
        format_ = self.make_format()
        rows = self._decoded(format_.create_decoder(), list(self.good_records())).batch
        if not self.encodes:
            with pytest.raises(PipelineError):
                format_.check_encodable(rows.schema)
            return
        format_.check_encodable(rows.schema)
        encoder = format_.create_encoder(rows.schema)
        encoded = encoder.encode(rows)
        assert encoded.type == pa.binary() and len(encoded) == len(rows) and not encoded.null_count
        encoded.validate(full=True)
        again = self._decoded(format_.create_decoder(), encoded.to_pylist())
        assert again.batch.equals(rows) and not again.bad
        assert encoder.encode(rows.slice(1, 3)).equals(encoded.slice(1, 3))
        assert len(encoder.encode(rows.slice(0, 0))) == 0

    def _decoded(self, decoder: RecordDecoder, values: Sequence[bytes | None]) -> DecodedRecords:
        return self._decode(decoder, pa.array(values, pa.binary()), values)

    def _decode(self, decoder: RecordDecoder, array: pa.Array, values: Sequence[bytes | None]) -> DecodedRecords:
        found = decoder.decode_records(pa.array([self.key_of(value) for value in values], pa.binary()), array)
        records = _records(found, len(array))
        bad = [one.index for one in found.bad]
        assert len(records) == len(found.batch)
        assert records == sorted(records) and bad == sorted(set(bad))
        assert not {*records} & {*bad} and {*records, *bad} <= {*range(len(array))}
        return found

    def _require_alone(self, decoder: RecordDecoder, values: Sequence[bytes | None]) -> None:
        found = self._decoded(decoder, values)
        records = _records(found, len(values))
        reasons = {one.index: one.reason for one in found.bad}
        for place, value in enumerate(values):
            alone = self._decoded(decoder, [value])
            rows = found.batch.slice(bisect_left(records, place), records.count(place))
            assert _texts(rows) == _texts(alone.batch)
            assert reasons.get(place) == next((one.reason for one in alone.bad), None)


def _damaged(value: bytes, at: int, inserted: bytes) -> bytes:
    at %= len(value) + 1
    return value[:at] + inserted + value[at + 1 :]


def _records(found: DecodedRecords, count: int) -> list[int]:
    """Return the record of each row."""
    if found.records is None:
        assert not found.bad
        return list(range(count))
    assert found.records.type == pa.int64()
    records: list[int] = found.records.to_pylist()
    return records


def _facts(found: DecodedRecords, count: int) -> tuple[list[str], list[int], list[Any]]:
    return _texts(found.batch), _records(found, count), list(found.bad)


def _texts(batch: pa.RecordBatch) -> list[str]:
    """Return the columns as text: a NaN is not equal to itself, and Python lacks values for some times."""
    return [column.to_string(window=_EVERYTHING, container_window=_EVERYTHING) for column in batch.columns]
