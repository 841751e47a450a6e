"""Objects of an S3 bucket, through s3fs. Exclusive creation uses S3's conditional write, `If-None-Match: *`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import s3fs

from tidegate.errors import AlreadyExistsError, NotFoundError, StoreError
from tidegate.jobs.stores.probe import probe_store
from tidegate.jobs.stores.store import Names, ObjectStat, Store, check_folder, check_path, join_path

WRITER_KEY = "tidegate-writer"
"""Object metadata that identifies the writing call. The S3 client repeats requests by itself, so the answer "exists"
can refer to an earlier attempt of the same call."""
MAX_CONFLICTS = 20
"""How often a create is repeated when S3 reports a competing create."""

PART_BYTES = 8 * 2**20
"""Part size in bytes. Objects of twice this size and more are written in parallel parts, and exist once the last part
has arrived. S3 requires at least 5 MiB; a larger part costs more when it must be sent again."""


class S3Store(Store):
    """The store of `s3://bucket/prefix`. Listing caches are off. The bucket's service must support conditional writes;
    `probe` tests it."""

    def __init__(self, location: str, options: Mapping[str, Any]) -> None:
        """Args: location: `bucket/prefix`. options: options of s3fs, with secrets resolved."""
        self._base = check_folder(location.strip("/"))
        if not self._base:
            raise StoreError(
                "the URL of the root names no S3 bucket", where=f"s3://{location}", remedy="Write s3://bucket/prefix"
            )
        self._options = dict(options)
        # After the user's options, which must not turn the cache on: a job directory needs current listings.
        self._files = s3fs.S3FileSystem(**{**self._options, "use_listings_cache": False})

    @property
    def url(self) -> str:
        """URL of the root."""
        return f"s3://{self._base}"

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`. If the client repeats a request, the winning writer still gets success.

        For a large object, the request that completes the multipart upload carries the condition.
        """
        key = self._key(path)
        writer = secrets.token_hex(16)
        with self._errors(path):
            for _ in range(MAX_CONFLICTS):
                try:
                    self._files.pipe_file(key, data, mode="create", chunksize=PART_BYTES, Metadata={WRITER_KEY: writer})
                    return
                except OSError as error:
                    code = _error_code(error)
                    if code == "PreconditionFailed" or isinstance(error, FileExistsError):
                        if self._writer_of(key) == writer:
                            return
                        raise AlreadyExistsError(
                            "an object with this key exists already",
                            where=f"s3://{key}",
                            remedy="Repeat the command: another process was faster",
                        ) from None
                    if code == "NoSuchUpload" and self._writer_of(key) == writer:
                        return  # the upload was completed and the answer lost; s3fs then finds nothing to abort
                    if code != "ConditionalRequestConflict":
                        raise
        raise StoreError(
            "S3 reports that other processes create this object at the same time",
            where=f"s3://{key}",
            remedy="Try again. If it fails again, find the other process that writes to this job",
        )

    def replace(self, path: str, data: bytes) -> None:
        """See `Store.replace`."""
        with self._errors(path):
            self._files.pipe_file(self._key(path), data, chunksize=PART_BYTES)

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        with self._errors(path):
            return bytes(self._files.cat_file(self._key(path)))

    def read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        """See `Store.read_range`. One request for the range."""
        if size_bytes == 0:
            return self.read(path)[:0]  # S3 has no empty range; this still raises NotFoundError
        with self._errors(path):
            try:
                return bytes(self._files.cat_file(self._key(path), start=offset, end=offset + size_bytes))
            except OSError as error:
                if _error_code(error) != "InvalidRange":
                    raise
                return b""  # the object ends before the offset

    def stat(self, path: str) -> ObjectStat:
        """See `Store.stat`."""
        with self._errors(path):
            head = self._head(self._key(path))
            return ObjectStat(int(head["ContentLength"]), head.get("LastModified"))

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        with self._errors(path):
            try:
                # Not `S3FileSystem.exists`, which also returns True for a folder.
                self._head(self._key(path))
            except FileNotFoundError:
                return False
            return True

    def list(self, folder: str) -> Names:
        """See `Store.list`."""
        prefix = self._folder(folder)
        names = self._found(folder, lambda: self._files.ls(prefix, detail=False, refresh=True))
        # Without the empty name: some tools create an object `prefix/` as the marker of a folder.
        return sorted(
            {name[len(prefix) + 1 :].split("/", 1)[0] for name in names if name.startswith(f"{prefix}/")} - {""}
        )

    def walk(self, folder: str) -> Names:
        """See `Store.walk`."""
        prefix = self._folder(folder)
        names = self._found(folder, lambda: self._files.find(prefix))
        return sorted(name[len(self._base) + 1 :] for name in names if name.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        with self._errors(path):
            # S3's own call succeeds if the object does not exist. `rm`
            # first looks for the object, and raises an error then.
            bucket, _, key = self._key(path).partition("/")
            self._files.call_s3("delete_object", Bucket=bucket, Key=key)

    def delete_folder(self, path: str) -> None:
        """See `Store.delete_folder`."""
        with self._errors(path):
            keys = [f"{self._base}/{name}" for name in self.walk(check_path(path))]
            if keys:
                self._files.rm(keys)

    def child(self, folder: str) -> S3Store:
        """See `Store.child`."""
        return S3Store(join_path(self._base, check_path(folder)), self._options)

    def local_path(self, path: str) -> str | None:
        """Return None: the objects are not in files."""
        return None

    def probe(self) -> None:
        """See `Store.probe`."""
        probe_store(self)

    def _key(self, path: str) -> str:
        return join_path(self._base, check_path(path))

    def _folder(self, folder: str) -> str:
        return join_path(self._base, check_folder(folder)) if folder else self._base

    def _head(self, location: str) -> Mapping[str, Any]:
        bucket, _, key = location.partition("/")
        answer: Mapping[str, Any] = self._files.call_s3("head_object", Bucket=bucket, Key=key)
        return answer

    def _writer_of(self, location: str) -> str | None:
        try:
            writer: str | None = self._head(location).get("Metadata", {}).get(WRITER_KEY)
        except FileNotFoundError:
            return None
        return writer

    def _found(self, folder: str, find: Callable[[], Any]) -> Names:
        with self._errors(folder):
            try:
                return [str(name) for name in find()]
            except FileNotFoundError as error:
                if _error_code(error) == "NoSuchBucket":
                    raise StoreError(
                        "the S3 bucket of the root does not exist",
                        where=self.url,
                        remedy="Create the bucket, or correct the root",
                    ) from error
                return []

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Convert errors of s3fs and botocore to StoreError."""
        where = f"{self.url}/{path}"
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if _error_code(error) == "NoSuchBucket":
                raise StoreError(
                    "the S3 bucket of the root does not exist",
                    where=self.url,
                    remedy="Create the bucket, or correct the root",
                ) from error
            raise NotFoundError("there is no object with this key", where=where) from None
        except Exception as error:
            protected = isinstance(error, PermissionError)
            raise StoreError(
                "S3 refused access" if protected else "a request to S3 failed",
                where=where,
                cause=f"{type(error).__name__}: {error}",
                remedy="Check the credentials in the storage options or the environment, and the bucket's policy"
                if protected
                else "Check the endpoint in the storage options, the bucket and the network",
            ) from error


def _error_code(error: BaseException) -> str:
    """Return the error code of the S3 service for an error of s3fs; "" when there is none."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        # s3fs translates the errors of botocore to OSError, and keeps the original, with the code, as the cause.
        cause = cause.__cause__
    return ""
