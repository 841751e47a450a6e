"""A packed pipeline: one file with its code, and with the packages that it needs besides the runtime's own.

It is a zip file: code in its root, packages in `site-packages/`, and `tidegate-artifact.json`, which names the pipeline
and the platform of the packages. Equal files give equal bytes: entries are sorted, and have no times and no owners.
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
"""Folder of the packages. It is not a valid module name, so no module of the pipeline can have this name."""
SUFFIX = ".zip"
MAX_PACKED_FILES = 30_000
"""Most files in a packed pipeline."""
MAX_PACKED_BYTES = 256 * 2**20
"""Most bytes in these files, before compression. Drivers and slots unpack them in memory."""
_COMPILED = (".so", ".pyd", ".dylib")
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
# A zip file stores the Unix mode of an entry in the upper 16 bits of its attributes.
_PLAIN_FILE = 0o644 << 16

UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, RuntimeError)
"""Exceptions of a zip file that is damaged, encrypted, or compressed with an unknown method."""

Files = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class PackedDescription:
    """The contents of `tidegate-artifact.json`.

    Attributes:
        pipeline: `module:function`.
        packages: `name==version` of each package, sorted.
        python, platform: platform of compiled files, such as "3.11" and "linux-x86_64"; "": no file is compiled.
    """

    RECORD: ClassVar[str] = "packed-pipeline"
    VERSION: ClassVar[int] = 1

    pipeline: str
    packages: tuple[str, ...] = ()
    python: str = ""
    platform: str = ""


def describe(pipeline: str, packages: Sequence[str], files: Files) -> PackedDescription:
    """Describe files that this interpreter has packed."""
    if not any(name.endswith(_COMPILED) for name, _ in files):
        return PackedDescription(pipeline, tuple(sorted(packages)))
    return PackedDescription(pipeline, tuple(sorted(packages)), _python(), sysconfig.get_platform())


def pack_pipeline(description: PackedDescription, files: Files) -> bytes:
    """Return the bytes of the packed file. `files`: (path, content) of code and packages, without the description.

    Raises:
        PipelineError: there are too many files or bytes, or two files with one name.
    """
    whole = sorted([*files, (DESCRIPTION, encode(description))])
    _refuse_duplicate_paths([path for path, _ in whole], "the files to pack")
    size_bytes = sum(len(content) for _, content in whole)
    if len(whole) > MAX_PACKED_FILES or size_bytes > MAX_PACKED_BYTES:
        raise PipelineError(
            f"the pipeline is too large for one artifact: {len(whole)} files with {size_bytes / 2**20:.0f} MiB",
            cause=f"the limit is {MAX_PACKED_FILES} files with {MAX_PACKED_BYTES // 2**20} MiB",
            remedy="Put the large packages into an image, or into an archive that spark.archives names",
        )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, content in whole:
            entry = zipfile.ZipInfo(path, _FIRST_TIME)
            entry.external_attr = _PLAIN_FILE
            # 3 is Unix. The default depends on the system that packs, and would change the bytes.
            entry.create_system = 3
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=6)
    return out.getvalue()


def read_packed(path: str) -> tuple[PackedDescription, Files]:
    """Read a file of `pack_pipeline`: its description and all files, including the description's own.

    Raises:
        PipelineError: the file does not exist, is another kind of file, or is damaged.
    """
    remedy = "Make the file with `tidegate pack`"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > MAX_PACKED_FILES or sum(entry.file_size for entry in entries) > MAX_PACKED_BYTES:
                raise PipelineError(
                    f"the packed pipeline has over {MAX_PACKED_FILES} files or {MAX_PACKED_BYTES // 2**20} MiB",
                    where=path,
                    remedy="Pack fewer packages: put the large ones into an image, or into an archive of "
                    "spark.archives",
                )
            _refuse_duplicate_paths([check_path(entry.filename) for entry in entries], path)
            files = tuple(sorted((entry.filename, read_entry(archive, entry)) for entry in entries))
        return decode(dict(files)[DESCRIPTION], PackedDescription, f"{path}, {DESCRIPTION}"), files
    except FileNotFoundError as error:
        raise PipelineError(
            "the packed pipeline does not exist", where=os.path.abspath(path), remedy="Correct the path"
        ) from error
    except KeyError as error:
        raise PipelineError(
            f"the file is not a packed pipeline: it has no {DESCRIPTION}", where=path, remedy=remedy
        ) from error
    except (StoreError, *UNREADABLE) as error:
        raise PipelineError(
            "the file is not a packed pipeline, or is damaged", where=path, cause=str(error), remedy=remedy
        ) from error


def is_packed_pipeline(path: str) -> bool:
    """Return whether a file is a packed pipeline, by name and description. A file that cannot be read is not one."""
    if not path.endswith(SUFFIX):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return DESCRIPTION in archive.namelist()
    except UNREADABLE:
        return False


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of an entry. Expands at most the size that the archive states, whatever the data contains.

    Raises one of `UNREADABLE`.
    """
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # other methods expand without limit
        raise NotImplementedError(f"{entry.filename} has a compression method other than stored or deflated")
    with archive.open(entry) as member:
        return member.read(entry.file_size + 1)


def _refuse_duplicate_paths(paths: Sequence[str], where: str) -> None:
    """Raise PipelineError for a path that occurs twice, or that is both a file and a folder."""
    known = set(paths)
    # Counting is quadratic in the number of files, so it is done only if there is a duplicate.
    clashes = {path for path in paths if paths.count(path) > 1} if len(known) < len(paths) else set()
    for path in known:
        folders = path.split("/")[:-1]
        clashes |= known & {"/".join(folders[: n + 1]) for n in range(len(folders))}
    if clashes:
        raise PipelineError(
            f"two files or folders in the packed pipeline have the path {min(clashes)!r}",
            where=where,
            cause="the pipeline's code and a package have the same name, or the code has a file "
            f"{DESCRIPTION}, which every packed pipeline contains",
            remedy="Rename that file or folder in the pipeline's code",
        )


def check_unpacked(folder: str) -> None:
    """Raise PipelineError when a folder has compiled packages of a packed pipeline for another Python or platform.

    A folder without a description is accepted.
    """
    path = os.path.join(folder, DESCRIPTION)
    try:
        with open(path, "rb") as file:
            made_for = decode(file.read(), PackedDescription, path)
    except FileNotFoundError:
        return
    except RecordError as error:
        raise PipelineError(
            "the description of the packed pipeline cannot be read",
            where=path,
            cause=str(error),
            remedy="Run `tidegate pack` again, and submit the new file",
        ) from error
    here = (_python(), sysconfig.get_platform())
    if made_for.platform and (made_for.python, made_for.platform) != here:
        raise PipelineError(
            "the packages in the packed pipeline were built for another Python or platform",
            where=path,
            cause=f"built for Python {made_for.python} on {made_for.platform}; this machine has Python {here[0]} on "
            f"{here[1]}",
            remedy="Run `tidegate pack` with the same Python, and on the same platform, as the executors",
        )


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))
