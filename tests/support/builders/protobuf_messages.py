"""A Protobuf schema without its compiler, and messages of it."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

_Field = descriptor_pb2.FieldDescriptorProto


def _message(name: str, *fields: dict[str, Any]) -> descriptor_pb2.DescriptorProto:
    made = descriptor_pb2.DescriptorProto(name=name)
    for number, field in enumerate(fields, 1):
        made.field.add(**{"number": number, "label": _Field.LABEL_OPTIONAL, **field})
    return made


def _order_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="State").value.extend(
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate(["NEW", "PAID"])
    )
    line = _message(
        "Line",
        {"name": "sku", "type": _Field.TYPE_STRING},
        {"name": "count", "type": _Field.TYPE_UINT32},
    )
    order_type = _message(
        "Order",
        {"name": "id", "type": _Field.TYPE_INT64},
        {"name": "shop", "type": _Field.TYPE_STRING},
        {"name": "note", "type": _Field.TYPE_STRING, "proto3_optional": True, "oneof_index": 0},
        {"name": "state", "type": _Field.TYPE_ENUM, "type_name": ".shop.State"},
        {"name": "at", "type": _Field.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"},
        {"name": "first", "type": _Field.TYPE_MESSAGE, "type_name": ".shop.Line"},
        {"name": "lines", "type": _Field.TYPE_MESSAGE, "type_name": ".shop.Line", "label": _Field.LABEL_REPEATED},
        {"name": "sizes", "type": _Field.TYPE_SINT32, "label": _Field.LABEL_REPEATED},
        {
            "name": "by_sku",
            "type": _Field.TYPE_MESSAGE,
            "type_name": ".shop.Order.BySkuEntry",
            "label": _Field.LABEL_REPEATED,
        },
        {"name": "limit", "type": _Field.TYPE_MESSAGE, "type_name": ".google.protobuf.Int64Value"},
        {"name": "raw", "type": _Field.TYPE_BYTES},
        {"name": "price", "type": _Field.TYPE_DOUBLE},
    )
    order_type.oneof_decl.add(name="_note")
    entry = _message(
        "BySkuEntry",
        {"name": "key", "type": _Field.TYPE_STRING},
        {"name": "value", "type": _Field.TYPE_MESSAGE, "type_name": ".shop.Line"},
    )
    entry.options.map_entry = True
    order_type.nested_type.append(entry)
    file.message_type.extend([line, order_type])
    return file


ORDER_FILES = descriptor_pb2.FileDescriptorSet(file=[_order_file()]).SerializeToString()
"""A FileDescriptorSet with one file, package `shop`: messages Line and Order."""


def order(n: int) -> bytes:
    """A message Order; different for each n."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(_order_file())
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    made = make(id=n * 10**10, shop=f"café {n}", state=n % 2, sizes=range(-1, n), raw=b"\xff", price=n / 3)
    if n % 2:
        made.note = ""
        made.at.seconds, made.at.nanos = n, 5_000
        made.first.sku = "x"
        made.limit.value = n
    for at in range(n):
        made.lines.add(sku=f"s{at}", count=at)
        made.by_sku[f"s{at}"].count = at
    encoded: bytes = made.SerializeToString(deterministic=True)
    return encoded
