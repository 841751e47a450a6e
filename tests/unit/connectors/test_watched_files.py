"""S4.3: files that arrive while the job runs are found once each, when they are complete, in little memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.files.source import known_files, watched_files
from tidegate.connectors.files.source.file_disposal import FileDisposal, archiving, deleting
from tidegate.connectors.files.source.file_listing import FoundFile, pinned
from tidegate.connectors.files.source.files import Files, FilesReader, file_of
from tidegate.connectors.files.source.known_files import DAY_S, KnownFiles, path_hash
from tidegate.connectors.files.source.watched_files import Watch, WatchedFiles
from tidegate.connectors.interface import Source, SourceContext, Split
from tidegate.connectors.storage import open_filesystem
from tidegate.errors import OptionError, OutageError, PipelineError
from tidegate.testing import DiscoveringSourceConformance

SCHEMA = pa.schema([("n", pa.int64())])
NOW_S = 1_750_000_000


def written(path: Path, rows: int = 3, *, age_s: float = 3_600, now_s: float = NOW_S) -> Path:
    """A file of that age."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(rows)))
    os.utime(path, (now_s - age_s, now_s - age_s))
    return path


class Folder:
    """A watched folder, and the clock of the driver that watches it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.now_s = float(NOW_S)
        self.source = Files(path, schema=SCHEMA, watch=Watch(**{"every": "10 s", **options}))
        self.state: Any = None
        self.restart()

    def restart(self) -> None:
        """A new driver, from the state of the last search."""
        state = json.loads(json.dumps(self.state))
        assert self.source._watch is not None
        self.enumerator = WatchedFiles(self.source._files, self.source._watch, state, now_s=lambda: self.now_s)

    def write(self, name: str, *, age_s: float = 3_600) -> None:
        written(self.path / name, age_s=age_s, now_s=self.now_s)

    def search(self) -> list[str]:
        """Names that one search finds."""
        found = self.enumerator.discover()
        self.state = found.state
        return [os.path.relpath(split.data["path"], self.path) for split in found.splits]

    def searched(self) -> list[str]:
        """Names that are found until nothing more is known."""
        names = self.search()
        while self.enumerator._waiting or not self.enumerator._all_wait:
            names += self.search()
        return names


@pytest.mark.parametrize("pattern", ["later", "later/*.jsonl"])
def test_a_path_that_does_not_exist_is_logged_at_the_start_and_until_it_appears(
    tmp_path: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S4.3: a wrong path would look like one without new files."""
    caplog.set_level("INFO")
    folder = Folder(tmp_path / pattern)
    folder.source.check_fresh_start()
    missing = f"the watched path {folder.source._files.urls[0]} does not exist"
    assert [record.message.partition(":")[0] for record in caplog.records] == [missing]
    caplog.clear()
    for folder.now_s in (NOW_S, NOW_S + 10, NOW_S + 599, NOW_S + 600, NOW_S + 700):
        assert folder.searched() == []
    assert [(record.levelname, record.message.partition(":")[0]) for record in caplog.records] == 2 * [
        ("WARNING", missing)
    ]
    written(tmp_path / "later/a.jsonl")
    caplog.clear()
    assert len(folder.searched()) == 1 and folder.searched() == []
    assert [record.message for record in caplog.records] == [f"{missing.partition(' does')[0]} exists now"]
    folder.source.check_fresh_start()
    assert len(caplog.records) == 1


class TestWatchedFiles(DiscoveringSourceConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        written(tmp_path / "a.jsonl", 90)
        written(tmp_path / "b.jsonl", 40)
        written(tmp_path / "sub" / "c.jsonl", 60)

    def make_source(self) -> Source:
        return Files(self.folder, schema=SCHEMA, watch=Watch("10 s", complete="listed"))

    def add_input(self) -> None:
        written(self.folder / f"more{len(list(self.folder.iterdir()))}.jsonl", 5)


def test_files_are_found_by_time_of_writing_then_name_or_by_name_alone(tmp_path: Path) -> None:
    by_time, by_name = Folder(tmp_path), Folder(tmp_path, order="name")
    for name, age_s in (("b", 900), ("c", 700), ("a", 700), ("d/x", 800)):
        by_time.write(f"{name}.jsonl", age_s=age_s)
    assert by_time.search() == ["b.jsonl", "d/x.jsonl", "a.jsonl", "c.jsonl"]
    assert by_name.search() == ["a.jsonl", "b.jsonl", "c.jsonl", "d/x.jsonl"]


def test_hidden_and_empty_files_are_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name in ("_temporary/a.jsonl", ".b.jsonl", "_SUCCESS", "c.jsonl"):
        folder.write(name)
    (tmp_path / "empty.jsonl").touch()
    assert folder.searched() == ["c.jsonl"]


def test_a_file_is_read_when_it_has_not_changed_for_an_interval(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a.jsonl", age_s=2)
    assert folder.search() == []
    folder.now_s += 5
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    os.utime(tmp_path / "a.jsonl", (folder.now_s, folder.now_s))
    assert folder.search() == []
    folder.now_s += 9
    assert folder.search() == [], "it was written 9 s ago"
    folder.now_s += 1
    assert folder.search() == ["a.jsonl"]


def test_a_file_whose_system_has_another_clock_is_read_when_two_listings_agree(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("future.jsonl", age_s=-9_000)
    assert folder.search() == []
    folder.now_s += 4
    assert folder.search() == [], "the two listings are too near to each other"
    folder.now_s += 7
    assert folder.search() == ["future.jsonl"]


def test_with_listed_a_file_is_read_at_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path, complete="listed")
    folder.write("a.jsonl", age_s=0)
    assert folder.search() == ["a.jsonl"]


def test_with_success_file_a_folder_is_read_when_it_is_complete(tmp_path: Path) -> None:
    folder = Folder(tmp_path, complete="success_file")
    for name in ("one/a.jsonl", "two/b.jsonl", "two/_SUCCESS"):
        folder.write(name)
    assert folder.search() == ["two/b.jsonl"]
    folder.write("one/_SUCCESS")
    assert folder.search() == ["one/a.jsonl"]


def test_a_restored_enumerator_finds_only_what_no_earlier_search_has_returned(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a.jsonl")
    assert folder.search() == ["a.jsonl"]
    folder.write("b.jsonl")
    folder.restart()
    assert folder.search() == ["b.jsonl"]
    folder.restart()
    assert folder.search() == []


def test_one_search_returns_a_part_of_many_files_and_the_rest_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a restart between any two searches: what waits is not yet part of the state."""
    monkeypatch.setattr(watched_files, "SPLITS_PER_SEARCH", 3)
    monkeypatch.setattr(watched_files, "MOST_WAITING", 7)
    monkeypatch.setattr(watched_files, "HASHED_AT_ONCE", 4)
    monkeypatch.setattr(known_files, "BLOCK_FILES", 5)
    names = [f"f{n:02d}.jsonl" for n in range(24)]
    for restarts in (False, True):
        folder = Folder(tmp_path)
        for n, name in enumerate(names):
            folder.write(name, age_s=1_000 - n)
        found: list[str] = []
        for _ in range(12):
            part = folder.search()
            assert len(part) <= 3
            found += part
            if restarts:
                folder.restart()
        assert found == names


def test_two_paths_that_lead_to_a_file_find_it_once(tmp_path: Path) -> None:
    written(tmp_path / "sub" / "a.jsonl")
    source = Files([tmp_path, tmp_path / "sub"], schema=SCHEMA, watch="10 s")
    found = source.create_enumerator(None).discover()
    assert [split.data["given"] for split in found.splits] == [0]


def test_a_folder_that_does_not_exist_yet_has_no_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "later")
    assert folder.search() == []
    folder.write("a.jsonl")
    assert folder.search() == ["a.jsonl"]


def test_a_folder_that_may_not_be_read_fails_and_a_system_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)

    def fails(error: OSError) -> Callable[[str], Any]:
        def scandir(path: str) -> Any:
            raise error

        return scandir

    monkeypatch.setattr(os, "scandir", fails(PermissionError("no")))
    with pytest.raises(PipelineError, match="cannot be listed"):
        folder.search()
    monkeypatch.setattr(os, "scandir", fails(OSError("stale file handle")))
    with pytest.raises(OutageError, match="stale file handle"):
        folder.search()


def test_a_file_of_an_unknown_format_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("notes.txt")
    with pytest.raises(PipelineError, match="format of the input file is unknown"):
        folder.search()


# ------------------------------------------------------------ files that are old


def test_old_files_leave_the_state_and_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "BLOCK_FILES", 4)
    folder = Folder(tmp_path, forget_after="1 h")
    for n in range(12):
        folder.write(f"old{n}.jsonl", age_s=3 * DAY_S - n)
    folder.searched()
    full = len(json.dumps(folder.state))
    folder.write("new.jsonl")
    assert folder.search() == ["new.jsonl"]
    assert len(json.dumps(folder.state)) < full and len(folder.state["known"]["blocks"]) == 1
    for _ in range(2):
        folder.restart()
        assert folder.search() == []


def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Folder:
    """A folder whose state has forgotten old files."""
    monkeypatch.setattr(known_files, "BLOCK_FILES", 1)
    folder = Folder(tmp_path, forget_after="1 h", **options)
    folder.write("old.jsonl", age_s=3 * DAY_S)
    folder.write("other.jsonl", age_s=3 * DAY_S)
    folder.write("new.jsonl")
    assert len(folder.searched()) == 3 and folder.search() == []
    assert folder.state["known"]["forgotten"]
    return folder


def test_a_file_that_arrives_too_late_fails_the_job_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = late(tmp_path, monkeypatch)
    folder.write("late.jsonl", age_s=3 * DAY_S)
    with pytest.raises(PipelineError, match="too long ago") as raised:
        folder.search()
    assert raised.value.where is not None and raised.value.where.endswith("late.jsonl")
    os.utime(tmp_path / "late.jsonl", (NOW_S - 60, NOW_S - 60))
    assert folder.search() == ["late.jsonl"], "the remedy"


@pytest.mark.parametrize("also_deleted", [False, True])
def test_a_file_that_arrived_too_late_while_no_driver_ran_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also_deleted: bool
) -> None:
    folder = late(tmp_path, monkeypatch)
    folder.write("late.jsonl", age_s=3 * DAY_S)
    if also_deleted:
        (tmp_path / "old.jsonl").unlink()
    folder.restart()
    with pytest.raises(PipelineError, match="2 were read" if also_deleted else "3 files are there, and 2 were read"):
        folder.search()


def test_old_files_may_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then fewer are known, so that a file that takes the place of a deleted one is noticed."""
    folder = late(tmp_path, monkeypatch)
    (tmp_path / "old.jsonl").unlink()
    folder.restart()
    assert folder.search() == []
    folder.write("late.jsonl", age_s=3 * DAY_S)
    folder.restart()
    with pytest.raises(PipelineError, match="2 files are there, and 1 were read"):
        folder.search()


def test_late_files_can_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = late(tmp_path, monkeypatch, on_late="ignore")
    folder.write("late.jsonl", age_s=3 * DAY_S)
    assert folder.search() == []
    folder.restart()
    folder.write("later.jsonl", age_s=3 * DAY_S)
    assert folder.search() == folder.search() == []
    folder.restart()
    assert folder.search() == []


def test_a_file_that_waits_for_its_completion_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The horizon stays behind everything that is still to be read."""
    monkeypatch.setattr(known_files, "BLOCK_FILES", 1)
    folder = Folder(tmp_path, forget_after="1 h", complete="success_file")
    folder.write("slow/a.jsonl", age_s=3 * DAY_S)
    folder.write("fast/b.jsonl", age_s=0)
    folder.write("fast/_SUCCESS")
    assert folder.search() == ["fast/b.jsonl"]
    folder.restart()
    folder.write("slow/_SUCCESS")
    assert folder.search() == ["slow/a.jsonl"]


def test_a_file_from_the_future_does_not_make_the_others_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "BLOCK_FILES", 1)
    folder = Folder(tmp_path, complete="listed")
    folder.write("future.jsonl", age_s=-400 * DAY_S)
    assert folder.search() == ["future.jsonl"] and folder.search() == []
    folder.write("now.jsonl", age_s=0)
    assert folder.search() == ["now.jsonl"]
    folder.restart()
    folder.write("then.jsonl", age_s=5)
    assert folder.search() == ["then.jsonl"]


def test_a_driver_whose_clock_is_behind_reads_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = late(tmp_path, monkeypatch)
    folder.now_s -= 10 * DAY_S
    folder.restart()
    assert folder.search() == []


def test_a_path_that_does_not_exist_hides_no_late_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = late(tmp_path / "in", monkeypatch)
    folder.source = Files(
        [tmp_path / "in", tmp_path / "optional"], schema=SCHEMA, watch=Watch("10 s", forget_after="1 h")
    )
    folder.restart()
    assert folder.search() == []
    folder.write("late.jsonl", age_s=3 * DAY_S)
    with pytest.raises(PipelineError, match="too long ago"):
        folder.search()


def test_old_files_are_compared_when_a_listing_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the folder is away, or does not answer in the middle."""
    folder = late(tmp_path / "in", monkeypatch)
    (tmp_path / "in").rename(tmp_path / "away")
    folder.restart()
    assert folder.search() == []
    (tmp_path / "away").rename(tmp_path / "in")
    assert folder.search() == [], "what it knows as old is there again"
    folder.restart()
    folder.write("late.jsonl", age_s=3 * DAY_S)
    monkeypatch.setattr(watched_files, "HASHED_AT_ONCE", 2)
    listed = watched_files._scan

    def breaks_off(path: str) -> Any:
        for n, entry in enumerate(listed(path)):
            if n == 3:
                raise OSError("the server does not answer")
            yield entry

    monkeypatch.setattr(watched_files, "_scan", breaks_off)
    with pytest.raises(OutageError):
        folder.search()
    monkeypatch.setattr(watched_files, "_scan", listed)
    with pytest.raises(PipelineError, match="3 files are there, and 2 were read"):
        folder.search()


def test_a_folder_that_is_removed_during_a_listing_hides_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path)
    for name in ("a/x.jsonl", "b/y.jsonl", "c/z.jsonl"):
        folder.write(name)
    listed = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("b"):
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert folder.search() == ["a/x.jsonl", "c/z.jsonl"]


def test_a_link_to_a_folder_that_contains_it_is_not_followed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in")
    folder.write("a.jsonl")
    (tmp_path / "other").mkdir()
    written(tmp_path / "other" / "b.jsonl")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "more").symlink_to(tmp_path / "other")
    assert folder.search() == ["a.jsonl", "more/b.jsonl"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """A snapshot could not hold it."""
    folder = Folder(tmp_path)
    written(Path(os.fsdecode(os.fsencode(tmp_path) + b"/z\xe9.jsonl")))
    with pytest.raises(PipelineError, match="not UTF-8"):
        folder.search()


# ------------------------------------------------------------ known files


def test_known_files_survive_the_round_trip_of_a_snapshot_and_fill_blocks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "BLOCK_FILES", 4)
    known = KnownFiles()
    hashes = [path_hash("file", f"/{n}") for n in range(30)]
    for n, hashed in enumerate(hashes[:20]):
        assert known.unknown([hashed, hashes[25]]) == [True, True]
        known.add(hashed, n)
        if n % 3 == 0:
            known = KnownFiles(json.loads(json.dumps(known.to_json())))
    assert known.unknown(hashes) == [False] * 20 + [True] * 10
    assert len(known.to_json()["blocks"]) <= 10
    known.forget(before_s=10)
    assert known.unknown(hashes) == [False] * 20 + [True] * 10, "in this process they stay known"
    restored = KnownFiles(json.loads(json.dumps(known.to_json())))
    assert restored.unknown(hashes[12:20]) == [False] * 8
    assert sum(restored.unknown(hashes[:10])) == sum(day.files for day in restored.forgotten.values()) > 0


def test_the_hash_of_a_path_depends_on_its_file_system() -> None:
    assert path_hash("s3", "a/b") != path_hash("file", "a/b")
    assert path_hash("file", "caf\udce9") == path_hash("file", "caf\udce9"), "a name that is not UTF-8"


# ------------------------------------------------------------ the source


@pytest.mark.parametrize(
    "options",
    [{"every": "0 s"}, {"order": "size"}, {"complete": "later"}, {"on_late": "read"}, {"forget_after": "-1 h"}],
    ids=str,
)
def test_a_wrong_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        Watch(**{"every": "10 s", **options})


def test_a_watched_source_is_unbounded_and_needs_a_schema_if_no_file_is_there(tmp_path: Path) -> None:
    source = Files(tmp_path, watch="10 s")
    assert source.boundedness == "unbounded" and "watched every 10 s" in source.describe()
    with pytest.raises(PipelineError, match="no file yet, so the schema is unknown"):
        source.schema()
    written(tmp_path / "a.jsonl")
    assert source.schema() == SCHEMA


def reader_of(folder: Path, subtask: int = 0) -> FilesReader:
    source = Files(folder, schema=SCHEMA, watch="10 s", on_bad_record="skip")
    reader = source.create_reader(SourceContext("files", subtask, 2))
    assert isinstance(reader, FilesReader)
    return reader


def splits_in(folder: Path) -> list[Split]:
    return list(Files(folder, schema=SCHEMA, watch="10 s").create_enumerator(None).discover().splits)


def played(reader: FilesReader) -> int:
    """Poll until the reader waits. Return the rows."""
    rows = 0
    while (polled := reader.poll(0)).state == "more":
        rows += 0 if polled.batch is None else polled.batch.num_rows
    assert polled.idle
    return rows


def test_a_reader_forgets_files_that_it_has_read_but_not_their_counts(tmp_path: Path) -> None:
    for name in "ab":
        written(tmp_path / f"{name}.jsonl", 4)
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write("no record\n")
        os.utime(tmp_path / f"{name}.jsonl", (NOW_S, NOW_S))
    first, second = splits_in(tmp_path)
    reader = reader_of(tmp_path)
    reader.add_splits([first])
    assert played(reader) == 4
    (counts,) = reader.snapshot()
    assert counts.finished and "path" not in counts.data
    reader.close()
    restored = reader_of(tmp_path)
    restored.add_splits([counts])
    restored.add_splits([second])
    assert played(restored) == 4
    assert restored.counters() == {"bad_records": 2}
    assert restored.progress() == {"rows": 8, "files_read": 2, "splits_left": 0}
    assert len(restored.snapshot()) == 1
    restored.close()
    assert restored.counters() == {"bad_records": 2}


def test_a_rescaled_reader_adds_up_the_counts_of_several(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", 4)
    written(tmp_path / "b.jsonl", 5)
    taken: list[Split] = []
    for subtask, split in enumerate(splits_in(tmp_path)):
        reader = reader_of(tmp_path, subtask)
        reader.add_splits([split])
        played(reader)
        taken += reader.snapshot()
    assert len({split.split_id for split in taken}) == 2
    merged = reader_of(tmp_path)
    merged.add_splits(taken)
    assert merged.progress()["rows"] == 9 and len(merged.snapshot()) == 1


# ------------------------------------------------------------ deleting and archiving


def disposing(folder: Path, **options: Any) -> FilesReader:
    source = Files(folder, schema=SCHEMA, watch=Watch("10 s", **options))
    reader = source.create_reader(SourceContext("files", 0, 1))
    assert isinstance(reader, FilesReader)
    return reader


def until(condition: Callable[[], bool]) -> None:
    """Wait for the thread."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("archives", [False, True])
def test_a_file_is_deleted_or_archived_after_a_checkpoint_in_which_it_was_read(tmp_path: Path, archives: bool) -> None:
    watched, archive = tmp_path / "in", tmp_path / "archive"
    first, second = written(watched / "x" / "a.jsonl"), written(watched / "b.jsonl")
    reader = disposing(watched, **({"archive": str(archive)} if archives else {"delete": True}))
    by_name = {split.data["path"]: split for split in splits_in(watched)}
    reader.add_splits([by_name[str(first)]])
    before = reader.snapshot()
    played(reader)
    taken = reader.snapshot()
    reader.add_splits([by_name[str(second)]])
    played(reader)
    reader.checkpoint_completed(1, before)
    reader.checkpoint_completed(2, taken)
    until(lambda: not first.exists())
    assert second.exists(), "it was read after the checkpoint"
    reader.checkpoint_completed(3, reader.snapshot())
    reader.close()
    assert not second.exists()
    assert [(archive / name).exists() for name in ("x/a.jsonl", "b.jsonl")] == [archives] * 2


def test_files_that_are_still_to_be_deleted_survive_a_restore(tmp_path: Path) -> None:
    """The driver ended between the completion and the deletion."""
    file = written(tmp_path / "a.jsonl")
    reader = disposing(tmp_path, delete=True)
    reader.add_splits(splits_in(tmp_path))
    played(reader)
    taken = [Split(s.split_id, json.loads(json.dumps(s.data)), s.position, s.finished) for s in reader.snapshot()]
    reader.close()
    restored = disposing(tmp_path, delete=True)
    restored.add_splits(taken)
    assert file.exists()
    restored.checkpoint_completed(1, restored.snapshot())
    until(lambda: not file.exists())
    until(lambda: next(iter(restored.snapshot())).data["read"] == [])
    restored.close()


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def fails_once(file: FoundFile) -> None:
        calls.append(file.path)
        if len(calls) == 1:
            raise PermissionError("not now")

    disposal = FileDisposal(fails_once)
    disposal.read(1, FoundFile(0, "a", 3))
    for _ in range(2):
        disposal.completed(1)
        until(lambda: not disposal._begun or not disposal._ended.empty())
        disposal.to_json()
    disposal.close()
    assert calls == ["a", "a"] and disposal.to_json() == [] and "not now" in caplog.text


def test_an_archive_keeps_both_of_two_files_with_one_path(tmp_path: Path) -> None:
    """And a file that was copied but not deleted by a run that ended is only deleted."""
    watched, archive = tmp_path / "in", tmp_path / "archive"
    move = archiving([str(watched)], {}, str(archive))
    for rows in (3, 5, 5):
        file = written(watched / "a.jsonl", rows)
        move(FoundFile(0, str(file), file.stat().st_size))
        assert not file.exists()
    move(FoundFile(0, str(file), 1))  # it is gone, as after a restart
    assert sorted(os.listdir(archive)) == ["a.jsonl", "a.jsonl.2"]


def test_a_file_that_was_replaced_after_it_was_read_is_not_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has read the new one."""
    file = written(tmp_path / "a.jsonl", 3)
    (split,) = splits_in(tmp_path)
    written(file, 99, age_s=1)
    deleting([str(tmp_path)], {})(file_of(split))
    assert file.exists() and "has been replaced" in caplog.text


@pytest.mark.parametrize("archive", ["{0}/done", "{0}", "memory://bucket/done", "{0}/x/../done"])
def test_an_archive_that_would_be_read_again_or_is_elsewhere_is_refused(tmp_path: Path, archive: str) -> None:
    with pytest.raises(OptionError, match="cannot be archived"):
        Files(tmp_path, schema=SCHEMA, watch=Watch("10 s", archive=archive.format(tmp_path)))


def test_an_archive_may_be_hidden_in_the_watched_folder(tmp_path: Path) -> None:
    Files(tmp_path, schema=SCHEMA, watch=Watch("10 s", archive=f"{tmp_path}/_done"))
    Files(f"{tmp_path}/in/*.jsonl", schema=SCHEMA, watch=Watch("10 s", archive=f"{tmp_path}/done"))


def test_an_object_whose_name_is_a_pattern_is_archived_alone() -> None:
    system, _ = open_filesystem("memory://archived", None)
    for name in ("a?.jsonl", "ab.jsonl"):
        system.pipe_file(f"/archived/in/{name}", b"{}")
    found = system.info("/archived/in/a?.jsonl")
    archiving(["memory://archived/in"], {}, "memory://archived/done")(pinned(0, "/archived/in/a?.jsonl", found))
    assert [system.exists(f"/archived/{name}") for name in ("in/a?.jsonl", "in/ab.jsonl", "done/a?.jsonl")] == [
        False,
        True,
        True,
    ]


def test_a_watch_either_deletes_or_archives() -> None:
    with pytest.raises(OptionError, match="either deleted or archived"):
        Watch("10 s", delete=True, archive="/tmp/archive")
