"""The schema that a source found, as a document (S5.5)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.found_schema import FoundSchema, found_schemas, using_found_schemas
from tidegate.errors import SnapshotError
from tidegate.plan.graph_document import graph_document

GOLDEN = Path(__file__).parent / "golden" / "found-schema-v1.json"
FOUND = FoundSchema(
    pa.schema(
        [
            ("k", pa.int64()),
            ("at", pa.timestamp("ns", "UTC")),
            ("amount", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.struct([("name", pa.string())]))),
        ]
    ),
    "/data/a.jsonl",
)


def test_every_type_comes_back_from_its_document() -> None:
    document = json.loads(json.dumps(FOUND.to_json()))
    assert FoundSchema.from_json(document, where="source 'rows'") == FOUND


def test_a_recorded_schema_stays_readable() -> None:
    """Arrow's own form may get other bytes in another version of Arrow; what was written must be read."""
    assert FoundSchema.from_json(json.loads(GOLDEN.read_text()), where="source 'rows'") == FOUND


@pytest.mark.parametrize("document", [{}, {"arrow": "?", "where": "x"}, {"arrow": "AAAA", "where": "x"}])
def test_a_damaged_document_is_refused_by_the_source_it_belongs_to(document: dict[str, str]) -> None:
    with pytest.raises(SnapshotError, match=r"schema of a source is damaged.*source 'rows'"):
        FoundSchema.from_json(document, where="source 'rows'")


def test_a_graph_document_holds_the_schemas_that_were_found(tmp_path: Path) -> None:
    """A declared one is in the pipeline's code; version 4 of the document holds none."""
    write(tmp_path / "a.csv", "k,n\n1,2\n")

    def drawn() -> Pipeline:
        p = Pipeline()
        p.read(Files(tmp_path, columns=["n"]), uid="found").write(Discard(), uid="out-1")
        p.read(Files(tmp_path, schema=pa.schema([("k", pa.int8())])), uid="declared").write(Discard(), uid="out-2")
        p.read(DataGen(lambda n: {"k": n}, pa.schema([("k", pa.int64())])), uid="made").write(Discard(), uid="out-3")
        return p

    document = graph_document(drawn().build())
    recorded = found_schemas(document)
    assert set(recorded) == {"found"}
    found = FoundSchema.from_json(recorded["found"], where="")
    assert found == FoundSchema(pa.schema([("k", pa.int64()), ("n", pa.int64())]), str(tmp_path / "a.csv"))
    assert found_schemas({"version": 4, "operators": [{"uid": "found", "connector": ["Files"]}]}) == {}
    write(tmp_path / "a.csv", "k,n\nx,y\n")
    with using_found_schemas(recorded):
        assert graph_document(drawn().build()) == document
    assert graph_document(drawn().build()) != document


def test_a_source_with_another_selection_takes_its_columns_from_the_recorded_schema(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "k,n\n1,2\n")
    found = Files(tmp_path).found_schema()
    assert found is not None
    write(tmp_path / "a.csv", "k,n\n1.5,2\n")
    source = Files(tmp_path, columns=["k"], on_bad_record="skip").with_found_schema(found)
    assert source.schema() == pa.schema([("k", pa.int64())])
    assert read_all(source).counters == {"bad_records": 1}
