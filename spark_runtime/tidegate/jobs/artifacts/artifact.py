"""The pinned code of a pipeline. A restore runs the submitted code, not the current files.

An artifact's name is the SHA-256 of its manifest, which lists every file with size and SHA-256. The job directory
contains `artifacts/<sha256>/code.zip` and then `manifest.json`.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tidegate.errors import AlreadyExistsError, NotFoundError, PipelineError, RecordError
from tidegate.jobs.artifacts.packed_pipeline import (
    MAX_PACKED_BYTES,
    MAX_PACKED_FILES,
    SUFFIX,
    UNREADABLE,
    read_entry,
    read_packed,
)
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import decode, encode
from tidegate.jobs.stores.store import Store, check_path

MAX_FILES = 10_000
"""Most files in a folder that is pinned without `tidegate pack`."""
MAX_BYTES = 64 * 2**20
"""Most bytes in these files, before compression."""

_EXCLUDED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv"})
_EXCLUDED_SUFFIXES = (".pyc", ".pyo")


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of an artifact.

    Attributes:
        path: path relative to the artifact's root, separated by `/`.
        size_bytes: size.
        sha256: SHA-256 of the content.
    """

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """The list of an artifact's files. The SHA-256 of its bytes is the artifact's name."""

    RECORD: ClassVar[str] = "artifact"
    VERSION: ClassVar[int] = 1

    files: tuple[Any, ...]

    def listed(self, where: str) -> tuple[ArtifactFile, ...]:
        """Return the files. Raises RecordError when a path leaves the artifact or an entry is malformed."""
        try:
            return tuple(
                ArtifactFile(check_path(f["path"]), int(f["size_bytes"]), str(f["sha256"])) for f in self.files
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(
                "the list of files in the pipeline's pinned code is malformed",
                where=where,
                cause=repr(error),
                remedy="Restore the job from its latest recovery point, and name the pipeline, so that its code is "
                "pinned again",
            ) from error


@dataclass(frozen=True, slots=True)
class PackedArtifact:
    """An artifact's files in memory.

    Attributes:
        sha256: SHA-256 of the manifest, the artifact's name.
        files: (path relative to the artifact's root, content), sorted.
    """

    sha256: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def manifest(self) -> ArtifactManifest:
        """The manifest of the files."""
        return _manifest(self.files)


def pack(path: str) -> PackedArtifact:
    """Read the code to pin: a file, or a folder without `__pycache__`, hidden names, virtual environments, compiled
    files and directories of jobs.

    A folder that is a Python package (with an `__init__.py`) keeps its name inside the artifact, so that it is imported
    under this name. The contents of any other folder become the artifact's root. Symbolic links to files are followed,
    links to folders are not. For a file of `tidegate pack`, the contents are returned.

    Raises:
        PipelineError: the path does not exist, is empty, or has more than MAX_FILES or MAX_BYTES.
    """
    path = os.path.abspath(path)
    if path.endswith(SUFFIX):
        _, packed_files = read_packed(path)
        return PackedArtifact(hashlib.sha256(encode(_manifest(packed_files))).hexdigest(), packed_files)
    if os.path.isfile(path):
        found: Iterator[tuple[str, str]] = iter([(os.path.basename(path), path)])
    elif os.path.isdir(path):
        found = _files_of(path, os.path.basename(path) if _is_package(path) else "")
    else:
        raise PipelineError(
            "the pipeline's file or folder does not exist", where=path, remedy="Correct the path of the pipeline"
        )
    files: list[tuple[str, bytes]] = []
    size_bytes = 0
    for name, source in found:
        # Before the file is read, so that a large data file beside the code is refused and does not fill the memory.
        size_bytes += os.path.getsize(source)
        if len(files) == MAX_FILES or size_bytes > MAX_BYTES:
            raise PipelineError(
                f"the pipeline's folder is too large to be stored with the job: over {MAX_FILES} files or "
                f"{MAX_BYTES // 2**20} MiB",
                where=path,
                cause="the folder may also contain data or a Python environment",
                remedy="Put the pipeline into a folder of its own, without data",
            )
        with open(source, "rb") as file:
            files.append((name, file.read()))
    if not files:
        raise PipelineError(
            "the pipeline's folder contains no files", where=path, remedy="Name the folder that has the pipeline's code"
        )
    packed = tuple(sorted(files))
    return PackedArtifact(hashlib.sha256(encode(_manifest(packed))).hexdigest(), packed)


def upload(store: Store, layout: JobLayout, packed: PackedArtifact) -> str:
    """Pin an artifact, and return its name. Idempotent, also for several submitters at once.

    Every upload renews the artifact's age, so that `tidegate gc` does not delete it before the submission exists.
    """
    code_path = layout.artifact_code(packed.sha256)
    if not store.exists(code_path):
        _create(store, code_path, _zipped(packed))
    store.replace(layout.artifact_manifest(packed.sha256), encode(packed.manifest))
    if not store.exists(code_path):  # `tidegate gc` deleted the old artifact in between
        _create(store, code_path, _zipped(packed))
    return packed.sha256


def artifact_exists(store: Store, layout: JobLayout, sha256: str) -> bool:
    """Return whether an artifact exists completely."""
    return store.exists(layout.artifact_code(sha256)) and store.exists(layout.artifact_manifest(sha256))


def copy_artifact(store: Store, source: JobLayout, target: JobLayout, sha256: str) -> None:
    """Pin an artifact of one job for another job of the same root. Raises RecordError when it does not exist."""
    try:
        code, manifest = store.read(source.artifact_code(sha256)), store.read(source.artifact_manifest(sha256))
    except NotFoundError as error:
        raise _damaged(source, sha256, "a file of it is missing") from error
    _create(store, target.artifact_code(sha256), code)
    store.replace(target.artifact_manifest(sha256), manifest)


def unpack_artifact(store: Store, layout: JobLayout, sha256: str, target_dir: str) -> None:
    """Write an artifact's files into `target_dir`, which may exist. All files are verified before the first is written.

    Raises:
        RecordError: the artifact is missing, incomplete or changed.
    """
    manifest_path = layout.artifact_manifest(sha256)
    try:
        data, code = store.read(manifest_path), store.read(layout.artifact_code(sha256))
    except NotFoundError as error:
        raise _damaged(layout, sha256, "a file of it is missing") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _damaged(layout, sha256, "the content of its manifest has another SHA-256 than its name")
    files = decode(data, ArtifactManifest, manifest_path).listed(manifest_path)
    contents = _verified(layout, sha256, code, files)
    for path, content in contents:
        target = os.path.join(target_dir, *path.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)


def resolve_pipeline(pipeline: str, code_root: str | None = None) -> tuple[str, str]:
    """Find the code of a pipeline, and the import path of its function. Imports nothing.

    Args:
        pipeline: `path/to/file.py:function` or `package.module:function`, or a file of `tidegate pack`. A module is
            searched below `code_root`, or else in the working directory and on `sys.path`.
        code_root: folder to pack as a whole; it must contain the file or module.

    Returns:
        The path for `pack`, and `module:function` to import from the artifact's root. For a file in a package, the path
        is the folder of the top package; for any other file, the file itself.

    Raises:
        PipelineError: the colon is missing, the file or module does not exist, or the file is outside `code_root`.
    """
    if pipeline.strip().endswith(SUFFIX):
        file = os.path.abspath(os.path.expanduser(pipeline.strip()))
        return file, read_packed(file)[0].pipeline
    location, colon, function = pipeline.strip().rpartition(":")
    if not colon or not location or not function.isidentifier():
        raise PipelineError(
            f"{pipeline!r} does not name a pipeline: a file or module, a colon, and a function",
            cause="the colon and the function's name are missing" if not colon else "",
            remedy="Write path/to/file.py:build or package.module:build",
        )
    if code_root is not None and not os.path.isdir(code_root):
        raise PipelineError(
            "the code root, the folder to pin with the pipeline, does not exist or is not a folder",
            where=os.path.abspath(code_root),
            remedy="Correct --code-root (code_root=)",
        )
    is_file = location.endswith(".py") or "/" in location or os.sep in location
    file = _checked_file(location, code_root) if is_file else _module_file(location, code_root)
    artifact = os.path.abspath(code_root) if code_root is not None else _top_package(file) or file
    import_root = os.path.dirname(artifact) if os.path.isfile(artifact) or _is_package(artifact) else artifact
    relative = os.path.relpath(file, import_root)
    if relative.startswith(".."):
        raise PipelineError(
            "the pipeline's file is outside the code root, the folder to pin with the pipeline",
            where=file,
            remedy=f"Move the file below {artifact}, or name another --code-root (code_root=)",
        )
    parts = relative.removesuffix(".py").split(os.sep)
    if parts[-1] == "__init__":
        parts.pop()
    if not all(part.isidentifier() for part in parts):
        raise PipelineError(
            f"{'.'.join(parts)} is not a module name that Python can import",
            where=file,
            cause="each part may have only letters, digits and underscores, and may not begin with a digit",
            remedy="Rename the file or folder whose name has other characters",
        )
    return artifact, f"{'.'.join(parts)}:{function}"


def _checked_file(location: str, code_root: str | None) -> str:
    tried = os.path.expanduser(location)
    candidates = [os.path.abspath(tried)]
    if code_root is not None and not os.path.isabs(tried):
        candidates.insert(0, os.path.abspath(os.path.join(code_root, tried)))
    for candidate in candidates:
        if os.path.isfile(candidate) and candidate.endswith(".py"):
            return candidate
    raise PipelineError(
        "the pipeline's Python file does not exist",
        where=candidates[0],
        cause=f"the working directory is {os.getcwd()}",
        remedy="Correct the path; write path/to/file.py:build",
    )


def _module_file(module: str, code_root: str | None) -> str:
    roots = [code_root] if code_root is not None else [os.getcwd(), *filter(None, sys.path)]
    if code_root is not None and _is_package(code_root):
        roots.append(os.path.dirname(os.path.abspath(code_root)))
    for root in roots:
        base = os.path.join(os.path.abspath(root), *module.split("."))
        for candidate in (f"{base}.py", os.path.join(base, "__init__.py")):
            if os.path.isfile(candidate):
                if code_root is None and "." in module and not _is_package(os.path.dirname(candidate)):
                    raise PipelineError(
                        f"the folder {os.path.dirname(candidate)} is not a Python package: it has no __init__.py",
                        where=candidate,
                        cause="without __init__.py it is unclear which files belong to the pipeline",
                        remedy=f"Add __init__.py, or write {os.path.relpath(candidate)}:<function>, or name the folder "
                        "of the code with --code-root (code_root=)",
                    )
                return candidate
    raise PipelineError(
        f"there is no Python module {module!r} for the pipeline",
        where=f"searched {', '.join(os.path.abspath(root) for root in roots[:3])}{' ...' if len(roots) > 3 else ''}",
        remedy="Write path/to/file.py:build, or name the folder of the module with --code-root (code_root=)",
    )


def _top_package(file: str) -> str | None:
    """Return the folder of the topmost package that contains `file`; None when it is not in a package."""
    folder, top = os.path.dirname(file), None
    while _is_package(folder) and os.path.dirname(folder) != folder:
        folder, top = os.path.dirname(folder), folder
    return top


def _is_package(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "__init__.py"))


def _files_of(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    for directory, folders, names in os.walk(folder):
        # Replaced in place, because `os.walk` visits the folders that are left in this list.
        folders[:] = sorted(name for name in folders if not _is_excluded_folder(directory, name))
        relative = os.path.relpath(directory, folder)
        inside = [part for part in (prefix, "" if relative == "." else relative.replace(os.sep, "/")) if part]
        for name in sorted(names):
            source = os.path.join(directory, name)
            if not name.startswith(".") and not name.endswith(_EXCLUDED_SUFFIXES) and os.path.isfile(source):
                yield "/".join([*inside, name]), source


def _is_excluded_folder(directory: str, name: str) -> bool:
    folder = os.path.join(directory, name)
    environment = os.path.isfile(os.path.join(folder, "pyvenv.cfg"))
    # A job root inside the folder would be copied into itself with every submission.
    is_job = all(os.path.isdir(os.path.join(folder, part)) for part in ("artifacts", "specs"))
    return name.startswith(".") or name in _EXCLUDED_FOLDERS or environment or is_job


def _manifest(files: tuple[tuple[str, bytes], ...]) -> ArtifactManifest:
    entries = (
        {"path": path, "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in files
    )
    return ArtifactManifest(tuple(entries))


def _zipped(packed: PackedArtifact) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in packed.files:
            # A `ZipInfo` without a time, so that equal code gives equal bytes.
            archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _verified(layout: JobLayout, sha256: str, code: bytes, files: tuple[ArtifactFile, ...]) -> list[tuple[str, bytes]]:
    """Return the content of every listed file. Never expands more bytes than the manifest lists."""
    contents: list[tuple[str, bytes]] = []
    if len(files) > MAX_PACKED_FILES or sum(file.size_bytes for file in files) > MAX_PACKED_BYTES:
        raise _damaged(layout, sha256, f"it is larger than {MAX_PACKED_FILES} files or {MAX_PACKED_BYTES // 2**20} MiB")
    try:
        with zipfile.ZipFile(io.BytesIO(code)) as archive:
            for file in files:
                entry = archive.getinfo(file.path)
                if entry.file_size != file.size_bytes:
                    raise _damaged(layout, sha256, f"the size of {file.path} differs from the size in the manifest")
                content = read_entry(archive, entry)
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise _damaged(layout, sha256, f"{file.path} does not match its checksum")
                contents.append((file.path, content))
    except (KeyError, *UNREADABLE) as error:
        raise _damaged(layout, sha256, f"code.zip is damaged ({error})") from error
    return contents


def _damaged(layout: JobLayout, sha256: str, cause: str) -> RecordError:
    return RecordError(
        "the pipeline's pinned code cannot be used",
        where=layout.artifact(sha256),
        cause=cause,
        remedy="Restore the job from its latest recovery point, and name the pipeline, so that its code is pinned "
        "again",
    )


def _create(store: Store, path: str, data: bytes) -> None:
    try:
        store.create(path, data)
    except AlreadyExistsError:
        return
