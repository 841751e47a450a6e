"""What is known of a file when it is listed, and how another file differs from it."""

from __future__ import annotations

from datetime import UTC, datetime

from tidegate.connectors.files.source.file_listing import FoundFile, pinned


def test_the_etag_of_an_object_decides_and_not_its_time() -> None:
    """Listings and single answers of an object store round times differently."""
    listed = pinned(0, "b/a.csv", {"size": 5, "ETag": '"abc"', "LastModified": datetime(2026, 1, 1, 0, 0, 0, 7, UTC)})
    assert (listed.mtime, listed.etag) == ("2026-01-01T00:00:00.000007+00:00", "abc")
    later = datetime(2026, 1, 1, tzinfo=UTC)
    assert listed.change({"size": 5, "ETag": "abc", "LastModified": later}) == ""
    assert "ETag of the file was abc" in listed.change({"size": 5, "ETag": '"abd"', "LastModified": later})


def test_a_split_of_a_version_without_pins_is_compared_by_size_alone() -> None:
    assert FoundFile(0, "a", 5).change({"size": 5, "mtime": 1.5, "ETag": "x"}) == ""
    assert FoundFile(0, "a", 5).change({"size": 6}) == "the file had 5 bytes when the job started and has 6 now"
