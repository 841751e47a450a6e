"""An archive of the classes that a driver's JVM loads, shared by later drivers of this user on this machine.

Java (class-data sharing) then maps the classes from the archive instead of loading and verifying each, which halves
the CPU time in which Spark starts. A driver whose JVM finds no archive creates one when it ends. This takes some CPU
seconds, so the first driver of all only leaves a mark: in a new container, whose home directory is empty each time,
an archive would be created but never used.

Files in the cache directory, which belongs to this user alone because the JVM trusts its contents:

- `classes-<digest>.seen`: a driver has started before.
- `classes-<digest>-<random>.new`: the JVM of a driver writes it when it ends.
- `classes-<digest>-<size>.jsa`: an archive in use. The size detects a file that was cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from pathlib import Path

WRITTEN_AFTER_S = 10.0
"""Seconds after its last change at which a new archive counts as written."""
MAGIC = b"\xa8\xab\x0b\xf0"
"""First bytes of a dynamic archive. The JVM writes them last."""


def java_options(directory: Path | None, jars: Path, purpose: str) -> str:
    """Return the JVM's options that use an archive, or create one when the JVM ends; "" if there is nothing to do.

    Args:
        directory: private writable directory; None: there is none.
        jars: folder of Spark's jars.
        purpose: drivers with other classes have another purpose, and an archive of their own.
    """
    java = _java()
    # Spark divides the JVM's options at spaces.
    if directory is None or java is None or " " in str(directory):
        return ""
    name = f"classes-{_digest(java, jars, purpose)}"
    with contextlib.suppress(OSError):
        archive = _archive(directory, name)
        if archive is not None:
            # Without the verification, a damaged archive could end the JVM.
            return f"-XX:SharedArchiveFile={archive} -XX:+VerifySharedSpaces -Xshare:auto"
        seen = directory / f"{name}.seen"
        if seen.exists() and not list(directory.glob(f"{name}-*.new")):
            new = directory / f"{name}-{secrets.token_hex(4)}.new"
            return f"-XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"
        seen.touch()
    return ""


def remove_archives(directory: Path) -> None:
    """Remove every archive, after a JVM did not start with one."""
    for path in directory.glob("classes-*.jsa"):
        with contextlib.suppress(OSError):
            path.unlink()


def _archive(directory: Path, name: str) -> Path | None:
    """Return the archive; None: there is none yet."""
    for new in directory.glob(f"{name}-*.new"):
        found = new.stat()
        if time.time() - found.st_mtime > WRITTEN_AFTER_S:
            if _is_complete(new) and not list(directory.glob(f"{name}-*.jsa")):
                new.replace(directory / f"{name}-{found.st_size}.jsa")
            else:
                new.unlink()
    for archive in directory.glob(f"{name}-*.jsa"):
        if archive.name == f"{name}-{archive.stat().st_size}.jsa":
            return archive
        archive.unlink()
    return None


def _is_complete(new: Path) -> bool:
    with open(new, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _java() -> Path | None:
    """Return the JVM that Spark's scripts start."""
    home = os.environ.get("JAVA_HOME")
    found = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return Path(found).resolve() if found and os.path.exists(found) else None


def _digest(java: Path, jars: Path, purpose: str) -> str:
    """Return a digest of what an archive depends on: an updated JVM or Spark has another one."""
    digest = hashlib.sha256(purpose.encode())
    for path in (java, *sorted(jars.glob("*.jar"))):
        with contextlib.suppress(OSError):
            found = path.stat()
            digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
