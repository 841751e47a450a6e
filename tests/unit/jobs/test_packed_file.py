"""The file of `tidegate pack`: its format, of which version 1 stays readable."""

from __future__ import annotations

import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest

from tidegate.errors import PipelineError, TidegateError
from tidegate.jobs.artifacts import packed_pipeline
from tidegate.jobs.artifacts.packed_pipeline import DESCRIPTION, PackedDescription, describe, pack_pipeline, read_packed
from tidegate.jobs.records import encode

GOLDEN = Path(__file__).parent / "golden" / "packed-pipeline-v1.zip"
FILES = (("flows.py", b"def build(args): ...\n"), ("site-packages/tiny.py", b"NAME = 'tiny'\n"))
DESCRIBED = PackedDescription("flows:build", ("tiny==1.0",))


def test_version_1_is_read() -> None:
    description, files = read_packed(str(GOLDEN))
    assert description == DESCRIBED
    assert dict(files).keys() == {"flows.py", "site-packages/tiny.py", DESCRIPTION}
    assert tuple((name, content) for name, content in files if name != DESCRIPTION) == FILES


def test_what_is_packed_is_read_again_whatever_the_order(tmp_path: Path) -> None:
    data = pack_pipeline(DESCRIBED, FILES)
    assert data == pack_pipeline(DESCRIBED, FILES[::-1])
    (tmp_path / "p.zip").write_bytes(data)
    assert read_packed(str(tmp_path / "p.zip"))[0] == DESCRIBED


def test_pure_packages_go_anywhere_and_compiled_ones_say_where() -> None:
    assert describe("a:b", ["z==1", "a==2"], FILES) == PackedDescription("a:b", ("a==2", "z==1"))
    assert describe("a:b", [], (*FILES, ("site-packages/x.so", b""))).platform


def test_too_much_is_refused_when_it_is_packed_and_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_pipeline, "MAX_PACKED_FILES", 2)
    with pytest.raises(PipelineError, match="the pipeline is too large for one artifact"):
        pack_pipeline(DESCRIBED, FILES)
    with pytest.raises(PipelineError, match="the packed pipeline has over"):
        read_packed(str(GOLDEN))


def test_a_damaged_file_is_refused_by_name_wherever_the_damage_is(tmp_path: Path) -> None:
    whole = pack_pipeline(DESCRIBED, (("flows.py", b"".join(b"x%d = %d\n" % (n, n * n) for n in range(500))),))
    file = tmp_path / "p.zip"
    found = set()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            read_packed(str(file))
        except TidegateError as error:
            found.add(error.what)
    assert "the file is not a packed pipeline, or is damaged" in found


def test_what_could_expand_without_a_limit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr(DESCRIPTION, encode(DESCRIBED))
        archive.writestr("zeros.py", bytes(2**20))
    with pytest.raises(PipelineError, match="a compression method other than stored or deflated"):
        read_packed(str(file))


def test_a_size_that_the_archive_lies_about_is_found_out_before_more_is_expanded(tmp_path: Path) -> None:
    zeros = 2**26
    file = tmp_path / "p.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(DESCRIPTION, encode(DESCRIBED))
        archive.writestr("zeros.py", bytes(zeros))
    file.write_bytes(file.read_bytes().replace(zeros.to_bytes(4, "little"), (100).to_bytes(4, "little")))
    tracemalloc.start()
    with pytest.raises(PipelineError, match="damaged"):
        read_packed(str(file))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < zeros // 8


def test_names_that_leave_the_folder_or_come_twice_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.zip"
    for names, says in (
        (["../x.py"], "not a packed pipeline"),
        (["/etc/x.py"], "not a packed pipeline"),
        (["m.py", "m.py"], "have the path 'm.py'"),
        (["m.py", "m.py/x.py"], "have the path 'm.py'"),
    ):
        with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
            warnings.simplefilter("ignore")
            for name in names:
                archive.writestr(name, name)
            archive.writestr(DESCRIPTION, encode(DESCRIBED))
        with pytest.raises(PipelineError, match=says):
            read_packed(str(file))
    with pytest.raises(PipelineError, match=f"have the path '{DESCRIPTION}'"):
        pack_pipeline(DESCRIBED, (*FILES, (DESCRIPTION, b"{}")))
