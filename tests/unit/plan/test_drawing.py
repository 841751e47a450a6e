"""The picture of a graph in notebooks."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc

from tidegate import DataGen, Discard, Pipeline, Stream, count, tumbling
from tidegate.plan.graph_svg import graph_html

SCHEMA = pa.schema([("time", pa.timestamp("us")), ("shop", pa.string()), ("price", pa.int64())])
SVG = "{http://www.w3.org/2000/svg}"


def nothing(numbers: Any) -> dict[str, Any]:
    raise AssertionError("a pipeline runs nothing while it is drawn")


def drawn(p: Pipeline) -> ElementTree.Element:
    """The SVG; it must be well-formed."""
    found = ElementTree.fromstring(p._repr_html_()).find(f"{SVG}svg")
    assert found is not None
    return found


def texts(svg: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{SVG}text")]


def orders(p: Pipeline, uid: str = "orders") -> Stream:
    return p.read(DataGen(nothing, SCHEMA), uid=uid).with_watermark("time", "0 s")


def test_every_operator_is_a_box_with_its_uid_and_every_exchange_is_named() -> None:
    p = Pipeline()
    hourly = orders(p).group_by("shop").window(tumbling("1 h")).agg(n=count(), uid="hourly")
    hourly.write(Discard(), uid="out")
    svg = drawn(p)
    assert len(list(svg.iter(f"{SVG}rect"))) == 4
    assert {"orders", "orders.watermark", "hourly", "out", "hash by shop"} <= set(texts(svg))


def test_boxes_do_not_cover_each_other_and_stand_below_their_inputs() -> None:
    p = Pipeline()
    left, right = orders(p), orders(p, "other")
    union = left.union(right, orders(p, "third"))
    for n in range(3):
        union.filter(pc.field("price") > n).write(Discard(), uid=f"out-{n}")
    boxes = [(int(r.attrib["x"]), int(r.attrib["y"])) for r in drawn(p).iter(f"{SVG}rect")]
    assert len(set(boxes)) == len(boxes)
    for node in p.build().nodes:
        assert all(boxes[edge.upstream][1] < boxes[node.node_id][1] for edge in node.inputs)


def test_what_users_write_is_text_and_no_markup() -> None:
    p = Pipeline()
    attack = "</title><script>alert(1)</script>"
    orders(p).filter(pc.field("shop") == attack).write(Discard(), uid="out")
    html = p._repr_html_()
    assert "<script" not in html
    titles = [element.text or "" for element in drawn(p).iter(f"{SVG}title")]
    assert any(attack in title for title in titles)


def test_a_pipeline_is_drawn_as_far_as_it_goes() -> None:
    p = Pipeline()
    assert list(drawn(p).iter(f"{SVG}rect")) == []
    stream = orders(p)
    assert texts(drawn(p))[0] == "orders"
    assert stream._repr_html_() == p._repr_html_()
    stream.write(Discard(), uid="out")
    assert graph_html(p.build()) == p._repr_html_()


def test_a_picture_fetches_nothing() -> None:
    p = Pipeline()
    orders(p).write(Discard(), uid="out")
    assert p._repr_html_().replace("http://www.w3.org/2000/svg", "").count("http") == 0
