"""A pipeline packed into one file: its code, and the packages that it needs besides the runtime's own.

A zip: code at its root, packages in `site-packages/`, and `tidegate-artifact.json`, which names the pipeline and what
the packages were made for. The same files give the same bytes: entries are sorted, and have no times and no owners.
"""

from __future__ import annotations

import io
import os
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidegate.errors import PipelineError, RecordError, StoreError
from tidegate.jobs.records import decode, encode
from tidegate.jobs.stores.store import check_path

DESCRIPTION = "tidegate-artifact.json"
SITE_PACKAGES = "site-packages"
"""Folder of the packages; as it is no name of a module, no module of the pipeline can be called so."""
SUFFIX = ".zip"
MAX_PACKED_FILES = 30_000
"""Files in a packed pipeline."""
MAX_PACKED_BYTES = 256 * 2**20
"""Bytes of all of them, before compression: driver and slots hold them in memory while they unpack."""
_COMPILED = (".so", ".pyd", ".dylib")
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
_PLAIN_FILE = 0o644 << 16

UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, RuntimeError)
"""What a zip raises that is damaged, encrypted, or compressed in a way that is not known here."""

Files = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class PackedDescription:
    """What `tidegate-artifact.json` says.

    Attributes:
        pipeline: `module:function`.
        packages: `name==version` of each, sorted.
        python, platform: what compiled files were made for, such as "3.11" and "linux-x86_64"; "": none are compiled.
    """

    RECORD: ClassVar[str] = "packed-pipeline"
    VERSION: ClassVar[int] = 1

    pipeline: str
    packages: tuple[str, ...] = ()
    python: str = ""
    platform: str = ""


def describe(pipeline: str, packages: Sequence[str], files: Files) -> PackedDescription:
    """The description of what this interpreter has packed."""
    if not any(name.endswith(_COMPILED) for name, _ in files):
        return PackedDescription(pipeline, tuple(sorted(packages)))
    return PackedDescription(pipeline, tuple(sorted(packages)), _python(), sysconfig.get_platform())


def pack_pipeline(description: PackedDescription, files: Files) -> bytes:
    """The file. `files`: (path, content) of code and packages, without the description.

    Raises:
        PipelineError: too many or too much, or two of one name.
    """
    whole = sorted([*files, (DESCRIPTION, encode(description))])
    _refuse_duplicate_paths([path for path, _ in whole], "what is to be packed")
    size_bytes = sum(len(content) for _, content in whole)
    if len(whole) > MAX_PACKED_FILES or size_bytes > MAX_PACKED_BYTES:
        raise PipelineError(
            f"this is too much for one artifact: {len(whole)} files of {size_bytes / 2**20:.0f} MiB",
            cause=f"at most {MAX_PACKED_FILES} files of {MAX_PACKED_BYTES // 2**20} MiB go through the job directory",
            remedy="Put the large packages into an image, or into an archive that spark.archives names",
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in whole:
            entry = zipfile.ZipInfo(path, _FIRST_TIME)
            entry.external_attr = _PLAIN_FILE
            entry.create_system = 3
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=6)
    return out.getvalue()


def read_packed(path: str) -> tuple[PackedDescription, Files]:
    """What `packed` made of it: the files with the description among them, as they are pinned.

    Raises:
        PipelineError: it is no such file, or damaged.
    """
    remedy = "Make it with `tidegate pack`"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > MAX_PACKED_FILES or sum(entry.file_size for entry in entries) > MAX_PACKED_BYTES:
                raise PipelineError("it holds more than an artifact can", where=path, remedy=remedy)
            _refuse_duplicate_paths([check_path(entry.filename) for entry in entries], path)
            files = tuple(sorted((entry.filename, read_entry(archive, entry)) for entry in entries))
        return decode(dict(files)[DESCRIPTION], PackedDescription, f"{path}, {DESCRIPTION}"), files
    except FileNotFoundError as error:
        raise PipelineError("there is no such file", where=os.path.abspath(path), remedy="Check the path") from error
    except KeyError as error:
        raise PipelineError(f"it has no {DESCRIPTION}", where=path, remedy=remedy) from error
    except (StoreError, *UNREADABLE) as error:
        raise PipelineError("it is no artifact, or damaged", where=path, cause=str(error), remedy=remedy) from error


def is_packed_pipeline(path: str) -> bool:
    """Whether it is such a file, by its name and its description; of what cannot be read: no."""
    if not path.endswith(SUFFIX):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return DESCRIPTION in archive.namelist()
    except UNREADABLE:
        return False


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The content of one file. Expands no more than the size that the archive says, whatever is in it. Raises one of
    `UNREADABLE`."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others expand without a limit
        raise NotImplementedError(f"{entry.filename} is compressed in another way than zip's own")
    with archive.open(entry) as member:
        return member.read(entry.file_size + 1)


def _refuse_duplicate_paths(paths: Sequence[str], where: str) -> None:
    """Raise PipelineError for a name that comes twice, or is that of a file and of a folder."""
    known = set(paths)
    clashes = {path for path in paths if paths.count(path) > 1} if len(known) < len(paths) else set()
    for path in known:
        folders = path.split("/")[:-1]
        clashes |= known & {"/".join(folders[: n + 1]) for n in range(len(folders))}
    if clashes:
        raise PipelineError(
            f"{min(clashes)!r} is there twice",
            where=where,
            cause=f"code and packages have one name, or it is {DESCRIPTION}, which an artifact has itself",
            remedy="Rename the file or folder of the pipeline",
        )


def check_unpacked(folder: str) -> None:
    """Of a folder that a packed pipeline was unpacked into: raise PipelineError when its compiled packages were made
    for another Python or platform. Any other folder is fine."""
    path = os.path.join(folder, DESCRIPTION)
    try:
        with open(path, "rb") as file:
            made_for = decode(file.read(), PackedDescription, path)
    except FileNotFoundError:
        return
    except RecordError as error:
        raise PipelineError("the artifact's description cannot be read", where=path, cause=str(error)) from error
    here = (_python(), sysconfig.get_platform())
    if made_for.platform and (made_for.python, made_for.platform) != here:
        raise PipelineError(
            "the packages of this artifact were made for another machine",
            where=path,
            cause=f"Python {made_for.python} on {made_for.platform}; here is Python {here[0]} on {here[1]}",
            remedy="Run `tidegate pack` with the Python, and on the platform, of the executors",
        )


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))
