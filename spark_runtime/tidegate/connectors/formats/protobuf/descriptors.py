"""Descriptors of Protobuf messages, from a FileDescriptorSet or a schema registry."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.connectors.formats.schema_registry import RegisteredSchema
from tidegate.errors import MissingExtraError, PipelineError
from tidegate.extras import installation

_MODULES = ("any", "api", "duration", "empty", "field_mask", "struct", "timestamp", "type", "wrappers")
"""Files below google/protobuf that registries do not send along."""


def load_protobuf() -> Any:
    """Return the package `google.protobuf`. Raises MissingExtraError if it is not installed."""
    try:
        import google.protobuf as module
        import google.protobuf.descriptor_pb2
        import google.protobuf.descriptor_pool
        import google.protobuf.message_factory  # noqa: F401 - each is then an attribute of the package
    except ImportError as error:
        raise MissingExtraError(
            "the format Protobuf needs the package protobuf",
            where="this Python environment",
            cause=str(error).splitlines()[0],
            remedy=f"Run `{installation('kafka')}` on the machines of the driver and the slots",
        ) from error
    return module


def message_descriptor(descriptor_set: bytes, message: str, *, where: str) -> Any:
    """Return the descriptor of a message.

    Args:
        descriptor_set: a serialized FileDescriptorSet, as `protoc --include_imports --descriptor_set_out` writes it.
        message: full name, such as `shop.Order`; empty: the first message of the last file.
        where: the set's place, for errors.

    Raises:
        PipelineError: the bytes are no such set, a file that is imported is missing, or there is no such message.
    """
    protobuf = load_protobuf()
    files = protobuf.descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(descriptor_set)
    except Exception as error:  # its class depends on the implementation of the package
        raise _damaged(where, "the bytes are no FileDescriptorSet") from error
    if not files.file:
        raise _damaged(where, "it has no file")
    pool = protobuf.descriptor_pool.DescriptorPool()
    for file in _with_imports_first([*_well_known(files.file), *files.file], where):
        try:
            pool.Add(file)
        except Exception as error:
            raise _damaged(where, f"the file {file.name!r} cannot be used: {error}") from error
    last = files.file[-1]
    if not message and last.message_type:
        message = f"{last.package}.{last.message_type[0].name}".lstrip(".")
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError as error:
        known = sorted(name for file in files.file for name in _messages(file.package, file.message_type))
        raise PipelineError(
            f"the Protobuf schema has no message {message!r}",
            where=where,
            cause=f"it has {', '.join(known[:20]) or 'none'}",
            remedy="Pass the full name with the package as message=",
        ) from error


def message_class(descriptor: Any) -> Any:
    """Return the class of a message."""
    return load_protobuf().message_factory.GetMessageClass(descriptor)


def registered_set(found: RegisteredSchema, where: str) -> bytes:
    """Return the FileDescriptorSet of a schema in a registry that was requested in the form `serialized`.

    Raises:
        PipelineError: it is no Protobuf schema, or the registry does not have this form.
    """
    protobuf = load_protobuf()
    if found.kind != "PROTOBUF":
        raise PipelineError(
            "the schema in the registry is not Protobuf",
            where=where,
            cause=f"it is {found.kind}",
            remedy="Use the format of that kind, or another subject",
        )
    files = protobuf.descriptor_pb2.FileDescriptorSet()
    for name, text in (*found.references, ("", found.text)):
        try:
            file = files.file.add()
            file.ParseFromString(base64.standard_b64decode(text))
        except (binascii.Error, ValueError) as error:
            raise _damaged(where, "the registry has it only as source text") from error
        except Exception as error:
            raise _damaged(where, "the bytes are no FileDescriptorProto") from error
        file.name = name or file.name
    made: bytes = files.SerializeToString()
    return made


def index_path(descriptor: Any) -> tuple[int, ...]:
    """Return the place of a message in its file: its number, after the numbers of the messages around it."""
    path = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
        path.append([one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = outer
    return tuple(reversed(path))


def message_at(descriptor_set: bytes, path: Sequence[int]) -> str | None:
    """Return the full name of the message at this place of the last file; None: there is none."""
    files = load_protobuf().descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    inner, names = files.file[-1].message_type, [files.file[-1].package]
    for number in path:
        if not 0 <= number < len(inner):
            return None
        names.append(inner[number].name)
        inner = inner[number].nested_type
    return ".".join(filter(None, names))


def _messages(prefix: str, messages: Any) -> Iterator[str]:
    for one in messages:
        name = f"{prefix}.{one.name}".lstrip(".")
        yield name
        yield from _messages(name, (inner for inner in one.nested_type if not inner.options.map_entry))


def _well_known(files: Any) -> list[Any]:
    """Return the files of Protobuf itself that are imported, and not in the set."""
    import importlib

    there = {file.name for file in files}
    wanted = {name for file in files for name in file.dependency} - there
    found = []
    for module in _MODULES:
        if f"google/protobuf/{module}.proto" in wanted or module in ("any", "source_context"):
            descriptor = importlib.import_module(f"google.protobuf.{module}_pb2").DESCRIPTOR
            if descriptor.name not in there:
                file = load_protobuf().descriptor_pb2.FileDescriptorProto()
                descriptor.CopyToProto(file)
                found.append(file)
    return found


def _with_imports_first(files: Sequence[Any], where: str) -> list[Any]:
    by_name = {file.name: file for file in files}
    ordered: dict[str, Any] = {}

    def add(name: str, trail: tuple[str, ...]) -> None:
        if name in ordered:
            return
        if name not in by_name or name in trail:
            raise _damaged(where, f"the imported file {name!r} is missing")
        for needed in by_name[name].dependency:
            add(needed, (*trail, name))
        ordered[name] = by_name[name]

    for file in files:
        add(file.name, ())
    return list(ordered.values())


def _damaged(where: str, cause: str) -> PipelineError:
    return PipelineError(
        "the Protobuf schema cannot be used",
        where=where,
        cause=cause,
        remedy="Write it with `protoc --include_imports --descriptor_set_out=FILE`, and pass the file",
    )
