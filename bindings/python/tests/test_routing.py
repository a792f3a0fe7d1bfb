"""Routings as arrays, as sequences, serialised, pickled."""

import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import EXPERTS, K, LAYERS, a_row_of_each_reason, expected_ids, run

VALID = np.ones((10, LAYERS), bool)
VALID[4:6] = False
VALID[6:, 2] = False


# The ids in place are strided: between those of two rows lies the validity of the first.
def test_a_segment_shows_its_rows_in_place_and_ids_are_a_dense_copy(
    routing: routecap.Routing,
) -> None:
    ids = routing.segments[0].ids
    assert ids is not None and len(routing.segments) == 1 and len(routing.segments[:]) == 1
    assert (
        ids.dtype == np.uint8
        and ids.shape == (20, LAYERS, K)
        and ids.strides[0] > LAYERS * K
        and ids[0].flags.c_contiguous
        and not ids.flags.writeable
        and not ids.flags.owndata
    )
    assert (ids == expected_ids(3, 20)).all()
    for row in range(20):  # as a program walks them
        assert (ids[row] == expected_ids(3, 20)[row]).all()
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 0
    with pytest.raises(ValueError):
        ids.flags.writeable = True
    copied = routing.ids(routing.dtype)
    assert copied.flags.c_contiguous and copied.flags.writeable
    assert not np.shares_memory(copied, ids) and (copied == ids).all()


def test_a_routing_says_what_it_is(routing: routecap.Routing) -> None:
    assert (
        routing.first,
        routing.rows,
        len(routing),
        routing.layers,
        routing.k,
        routing.experts,
    ) == (0, 20, 20, LAYERS, K, EXPERTS)
    assert (
        routing.complete
        and routing.ready
        and routing.status == routecap.Status.OK
        and routing.dtype == np.uint8
    )
    assert routing.id_space == routecap.IdSpace.LOGICAL
    assert (
        routing.layer_map.tolist() == [0, 1, 2, 3, 4]
        and routing.layer_experts.tolist() == [EXPERTS] * LAYERS
    )
    assert (
        routing.layer_provenance.tolist() == [0] * LAYERS and not routing.layer_map.flags.writeable
    )
    assert routing.tags.tolist() == [7] * 20
    assert (
        routing.coverage() == (LAYERS, 0, 20, 20, 20, 0, 0, 0, 0, 0, 0)
        and routing.coverage().complete
    )
    assert len(routing.missing) == 0 and routing.mask().all()
    assert repr(routing) == "<routecap.Routing of rows 0..19, 5 layers, k=4, OK>"


def test_missing_cells_are_filled_and_named_and_never_pass_for_ids(holey: routecap.Routing) -> None:
    assert holey.wait() == routecap.Status.INCOMPLETE and not holey.complete
    ids = holey.ids()
    assert ids.dtype == np.int16
    assert (ids == np.where(VALID[..., None], expected_ids(3, 10), -1)).all()
    assert (holey.mask() == VALID).all() and (holey.mask(order="layer_major") == VALID.T).all()
    values, mask = holey.masked(np.int32, fill=0)
    assert (mask == VALID).all() and (
        values == np.where(VALID[..., None], expected_ids(3, 10), 0)
    ).all()
    assert [block.tolist() for block in holey.missing] == [
        (4, 2, 0, 5, routecap.Missing.ABSENT, 0),
        (6, 4, 2, 1, routecap.Missing.UNWRITTEN, 0),
    ]
    assert holey.coverage().cells_missing == 2 * LAYERS + 4
    absent, unwritten = routecap.Missing.ABSENT, routecap.Missing.UNWRITTEN
    assert (
        holey.reasons() == np.where(VALID, 0, [[absent]] * 6 + [[unwritten]] * 4)
    ).all() and holey.tags.tolist() == [1] * 4 + [0] * 2 + [2] * 4
    with pytest.raises(ValueError, match="expert"):
        holey.ids(fill=0)
    with pytest.raises(routecap.Error) as raised:
        holey.ids(strict=True)
    assert raised.value.status == routecap.Status.ERR_INCOMPLETE
    assert (holey.ids(np.uint8)[~VALID] == 255).all()  # -1 in eight bits, and no expert here
    with pytest.raises(routecap.DtypeError):
        holey.ids(np.int8)


def test_every_missing_cell_has_the_reason_of_its_block() -> None:
    random = np.random.default_rng(1)
    ids = expected_ids(1, 30).astype(np.uint8)
    valid = random.random((30, LAYERS)) < 0.5
    reasons = random.integers(0, 13, valid.shape)  # some of which are none, and stand for UNWRITTEN
    routing = routecap.Routing.from_arrays(
        ids, experts=EXPERTS, valid=valid, reasons=reasons, tags=5
    )
    expected = np.zeros((30, LAYERS), np.uint8)
    for block in routing.missing:
        expected[block["first"] :, block["first_layer"] :][: block["rows"], : block["layers"]] = (
            block["reason"]
        )
    assert (
        (routing.reasons() == expected).all()
        and (routing.mask() == (expected == 0)).all()
        and set(expected.flat) == set(range(11))
    )


def test_ids_of_a_missing_cell_are_no_reason() -> None:
    """Whatever id lay there became one: cells of expert 7 were "taken", of expert 10 "stale"."""
    ids, valid = expected_ids(1, 30), np.ones((30, LAYERS), bool)
    valid[4:6], valid[20:, 1] = False, False
    given = ids.astype(np.uint8)
    before = given.copy()
    for each in (ids, given):
        routing = routecap.Routing.from_arrays(each, experts=EXPERTS, valid=valid)
        reasons = routing.reasons()
        assert (reasons[4:6] == routecap.Missing.ABSENT).all()
        assert (reasons[20:, 1] == routecap.Missing.UNWRITTEN).all()
        assert len(routing.missing) == 2
    assert (given == before).all()


def test_segments_without_ids_say_why_their_rows_are_not_there() -> None:
    ids = expected_ids(1, 2).astype(np.uint8)
    lost, taken, absent = routecap.Missing.LOST, routecap.Missing.TAKEN, routecap.Missing.ABSENT
    segments = [
        routecap.Segment(0, 3, None, None, None, 0, lost),
        routecap.Segment(3, 2, ids, None, None, 7),
        routecap.Segment(5, 1, None, None, None, 0),
        routecap.Segment(6, 1, None, None, None, 0, taken),
    ]
    whole = routecap.Routing.from_segments(
        segments, layers=LAYERS, k=K, rows=8, dtype=np.uint8, experts=EXPERTS
    )
    for routing in (
        whole,
        routecap.Routing.deserialize(whole.serialize()),
        *(pickle.loads(pickle.dumps(whole, protocol)) for protocol in (4, 5)),
    ):
        assert routing == whole
        assert routing.reasons()[:, 0].tolist() == [lost] * 3 + [0] * 2 + [absent, taken, absent]
        assert [(segment.first, segment.rows, segment.reason) for segment in routing.segments] == [
            (0, 3, lost), (3, 2, 0), (5, 1, absent), (6, 1, taken), (7, 1, absent),
        ]  # fmt: skip
    wrong = segments[1]._replace(reason=lost)  # of rows that are there
    with pytest.raises(ValueError, match="reason 5"):
        routecap.Routing.from_segments(
            [wrong], layers=LAYERS, k=K, rows=8, dtype=np.uint8, experts=EXPERTS
        )


def test_a_row_that_is_not_there_has_no_tag_whatever_the_reason() -> None:
    routing = a_row_of_each_reason(tag=7)
    assert routing.reasons()[:, 0].tolist() == list(routecap.Missing)
    there = np.zeros(routing.rows, bool)  # the rows that have ids in the library's own bytes
    for segment in routecap.Routing.deserialize(routing.serialize()).segments:
        there[segment.first : segment.first + segment.rows] = segment.ids is not None
    assert 0 < there.sum() < routing.rows
    assert routing.tags.tolist() == (7 * there).tolist()


@pytest.mark.parametrize("experts", [EXPERTS, 256, 257, 32768])
@pytest.mark.parametrize("valid", [VALID, ~VALID, np.ones_like(VALID), np.zeros_like(VALID)])
def test_ids_are_int16_whatever_is_missing(experts: int, valid: Any) -> None:
    """They were uint8 until the first cell was missing: what worked in a test failed later."""
    ids = expected_ids(3, 10, experts=EXPERTS - 1)
    ids[..., 0] = experts - 1  # the highest there is
    routing = routecap.Routing.from_arrays(ids, experts=experts, valid=valid)
    found = (
        routing.ids(),
        routing[3],
        next(iter(routing)),
        routing[2:7].ids(),
        np.asarray(routing),
        np.from_dlpack(routing),
    )
    assert {each.dtype for each in found} == {np.dtype(np.int16)}
    assert (found[0] == np.where(valid[..., None], ids, -1)).all() and (
        np.asarray(routing) == found[0]
    ).all()
    assert routing.masked()[0].dtype == routing.dtype == (np.uint8 if experts <= 256 else np.int16)


def test_ids_of_int16_are_in_place_too() -> None:
    ids = expected_ids(3, 20, experts=300)
    there = routecap.Routing.from_arrays(ids, experts=300).segments[0].ids
    assert there is not None and there.dtype == np.int16 and (there == ids).all()


@pytest.mark.parametrize(
    "dtype",
    [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, "i32", routecap.Dtype.I64],
)
def test_ids_come_in_every_type(routing: routecap.Routing, dtype: Any) -> None:
    ids = routing.ids(dtype)
    assert (ids == expected_ids(3, 20)).all()
    assert ids.dtype == {"i32": np.int32, routecap.Dtype.I64: np.int64}.get(dtype, dtype)


def test_ids_come_in_both_orders_and_of_some_layers(routing: routecap.Routing) -> None:
    expected = expected_ids(3, 20)
    assert (routing.ids(order="layer_major") == expected.transpose(1, 0, 2)).all()
    assert (routing.ids(first_layer=1, layers=2) == expected[:, 1:3]).all()
    assert (routing.ids(first_layer=4) == expected[:, 4:]).all()
    with pytest.raises(IndexError):
        routing.ids(first_layer=6)
    with pytest.raises(IndexError):
        routing.ids(first_layer=1, layers=5)


def test_rows_are_copied_into_any_layout(routing: routecap.Routing) -> None:
    expected = expected_ids(3, 20)
    wide = np.full((40, LAYERS + 2, K + 3), -9, np.int64)
    out = wide[::2, 1:-1, :K]
    assert routing.copy_to(out) == routecap.Status.OK
    assert (
        (out == expected).all()
        and (wide[1::2] == -9).all()
        and (wide[:, 0] == -9).all()
        and (wide[..., K:] == -9).all()
    )
    out = np.empty((LAYERS, 20, K), np.int32)
    mask = np.empty((LAYERS, 20), bool)
    routing.copy_to(out, mask=mask, order="layer_major")
    assert (out == expected.transpose(1, 0, 2)).all() and mask.all()
    out = np.empty((20, LAYERS, K), np.int16).transpose(
        1, 0, 2
    )  # layers in the first place of rows in the first place
    routing.copy_to(out, order=routecap.Order.LAYER_MAJOR)
    assert (out == expected.transpose(1, 0, 2)).all()


@pytest.mark.parametrize(
    ("out", "kind"),
    [
        (np.empty((19, LAYERS, K), np.int32), ValueError),
        (np.empty((20, LAYERS - 1, K), np.int32), ValueError),
        (np.empty((20, LAYERS, K + 1), np.int32), ValueError),
        (np.empty((20, LAYERS * K), np.int32), ValueError),
        (np.empty((20, LAYERS, K), np.float32), TypeError),
        (np.empty((20, LAYERS, K), np.int8), TypeError),
        (np.empty((20, LAYERS, K), ">i4"), TypeError),
        (np.empty((20, LAYERS, K, 2), np.int32)[..., 0], ValueError),
        (np.empty((20, LAYERS, K), np.int32)[::-1], ValueError),
        (np.empty((20, LAYERS, K), np.int32)[:, ::-1], ValueError),
        (np.broadcast_to(np.empty((1, LAYERS, K), np.int32), (20, LAYERS, K)), ValueError),
        (np.empty((20, LAYERS, K), np.int32).tobytes(), ValueError),
        ([[[0]]], ValueError),
        (None, ValueError),
    ],
)
def test_an_out_that_does_not_fit_is_refused(
    routing: routecap.Routing, out: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as raised:
        routing.copy_to(out)
    assert isinstance(raised.value, routecap.Error)


def test_a_mask_that_does_not_fit_is_refused(routing: routecap.Routing) -> None:
    out = np.empty((20, LAYERS, K), np.int32)
    readonly = np.empty((20, LAYERS), bool)
    readonly.flags.writeable = False
    listed = [[False] * LAYERS] * 20  # into which nothing can be written
    for mask in (
        np.empty((20, LAYERS - 1), bool),
        np.empty((20, LAYERS), np.int32),
        np.empty((20, LAYERS, 2), bool)[..., 0],
        readonly,
        listed,
    ):
        with pytest.raises(ValueError):
            routing.copy_to(out, mask=mask)


def test_a_routing_is_a_sequence_of_rows(routing: routecap.Routing) -> None:
    expected = expected_ids(3, 20)
    assert (routing[3] == expected[3]).all() and (routing[-1] == expected[-1]).all()
    assert (np.stack(list(routing)) == expected).all()
    part = routing[5:9]
    assert (part.first, part.rows) == (5, 4) and (part.ids() == expected[5:9]).all()
    assert (part[0] == expected[5]).all() and part[1:].first == 6
    assert len(routing[9:5]) == 0 and routing[20:].ids().shape == (0, LAYERS, K)
    with pytest.raises(IndexError):
        routing[20]
    with pytest.raises(ValueError, match="step 1"):
        routing[::2]
    with pytest.raises(IndexError):
        routing.slice(21)


def test_a_routing_is_divided_and_put_together_again(routing: routecap.Routing) -> None:
    prompt, generated = routing.split(12)
    assert (len(prompt), len(generated), generated.first) == (12, 8, 12)
    assert [len(part) for part in routing.split(12, 3)] == [12, 3]
    assert routecap.merge([prompt, generated]) == routing
    with pytest.raises(routecap.Error) as raised:
        routecap.merge([])
    assert raised.value.status == routecap.Status.ERR_ARGUMENT


def test_a_merge_in_conflict_is_an_error(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    other = capturer.open()
    run(capturer, other, expected_ids(4, 20))
    with pytest.raises(routecap.Error) as raised:
        routecap.merge([routing, other.extract()])
    assert raised.value.status == routecap.Status.ERR_CONFLICT


# ---- Serialised


def test_the_serialised_form_comes_back_in_place(holey: routecap.Routing) -> None:
    holey.wait()
    data = holey.serialize()
    assert bytes(holey) == data and holey.serialized_bytes == len(data)
    back = routecap.Routing.deserialize(data)
    assert (
        back == holey
        and back.status == routecap.Status.INCOMPLETE
        and (back.ids() == holey.ids()).all()
    )
    shared = back.segments[0].ids
    assert shared is not None and np.shares_memory(shared, np.frombuffer(data, np.uint8))
    info = routecap.serialized_info(data[: routecap.SERIALIZED_MIN])
    assert (info.version, info.bytes, info.first, info.rows, info.layers, info.k, info.dtype) == (
        1,
        len(data),
        0,
        10,
        LAYERS,
        K,
        np.uint8,
    )
    out = bytearray(len(data) + 3)
    assert holey.serialize_into(out) == len(data) and out[:-3] == data
    with pytest.raises(routecap.Error) as raised:
        holey.serialize_into(bytearray(len(data) - 1))
    assert (
        raised.value.status == routecap.Status.ERR_BUFFER_TOO_SMALL
        and raised.value.needed == len(data)
    )
    assert (
        routecap.Routing.deserialize(data, copy=True) == holey
        and routecap.Routing.deserialize(data, trusted=True) == holey
    )


def test_a_lent_buffer_is_held_until_the_last_routing_and_array_of_it_have_gone(
    routing: routecap.Routing,
) -> None:
    data = bytearray(routing.serialize())
    back = routecap.Routing.deserialize(data)
    part = back[3:5]
    ids = part.segments[0].ids
    for each in (back, part):
        with pytest.raises(BufferError):
            data.append(0)  # it is exported
        each.free()
    with pytest.raises(BufferError):
        data.append(0)
    assert (ids == expected_ids(3, 20)[3:5]).all()
    del ids, part, back, each
    gc.collect()
    data.append(0)


def test_bytes_that_are_no_routing_are_refused(routing: routecap.Routing) -> None:
    data = routing.serialize()
    for bad in (
        b"",
        data[:-1],
        data + b"\0",
        b"x" + data[1:],
        bytes(len(data)),
        data[: len(data) // 2],
    ):
        buffer = bytearray(bad)
        try:
            routecap.Routing.deserialize(buffer)
            pytest.fail("it was taken")
        except ValueError as error:
            assert isinstance(error, routecap.Error) and error.status == routecap.Status.ERR_FORMAT
        buffer.append(0)  # not held
    with pytest.raises(routecap.Error):
        routecap.Routing.deserialize("text")
    with pytest.raises(TypeError):
        routecap.Routing()


def test_serialised_routings_are_spliced_on_their_headers(
    capturer: routecap.Capturer, routing: routecap.Routing
) -> None:
    prompt, generated = routing.split(12)
    head, tail = prompt.serialize(), generated.serialize()
    assert routecap.Routing.deserialize(routecap.splice(head, tail, 12)) == routing
    pieces = routecap.splice_pieces(head, tail, 12)
    assert routecap.Routing.deserialize(b"".join(pieces)) == routing
    assert any(
        np.shares_memory(np.frombuffer(piece, np.uint8), np.frombuffer(head, np.uint8))
        for piece in pieces
    )
    middle = routecap.Routing.deserialize(routecap.splice(head, tail, 6))
    assert (
        len(middle) == 20
        and not middle.complete
        and middle.mask()[:6].all()
        and not middle.mask()[6:12].any()
    )


# ---- Arrays of any origin


def test_arrays_become_a_routing() -> None:
    ids = expected_ids(1, 6).astype(np.uint8)
    made = routecap.Routing.from_arrays(ids, experts=EXPERTS, first=100, tags=5)
    assert (made.first, made.rows, made.status) == (
        100,
        6,
        routecap.Status.OK,
    ) and made.tags.tolist() == [5] * 6
    assert (made.ids(np.uint8) == ids).all()
    copied = routecap.Routing.from_arrays(
        ids.astype(np.int64), experts=EXPERTS, first=100, tags=np.full(6, 5)
    )
    assert copied == made
    there = made.segments[0].ids
    assert there is not None and not np.shares_memory(there, ids)
    assert routecap.Routing.from_arrays(np.zeros((0, 2, 2), np.int32), experts=8).rows == 0


def test_arrays_with_holes_and_layers_of_their_own_become_a_routing() -> None:
    ids = expected_ids(3, 10)
    tags = np.arange(10, dtype=np.uint64)
    made = routecap.Routing.from_arrays(
        ids,
        valid=VALID,
        tags=tags,
        layer_map=[3, 4, 5, 9, 11],
        layer_experts=[64, 64, 300, 64, 64],
        layer_provenance=["captured"] * 4 + ["recomputed"],
        id_space="physical",
    )
    assert (
        made.dtype == np.int16
        and made.id_space == routecap.IdSpace.PHYSICAL
        and made.layer_map.tolist() == [3, 4, 5, 9, 11]
    )
    assert made.layer_experts.tolist() == [
        64,
        64,
        300,
        64,
        64,
    ] and made.layer_provenance.tolist() == [0, 0, 0, 0, 1]
    assert (
        (made.mask() == VALID).all()
        and (made.ids()[VALID] == ids[VALID]).all()
        and made.tags[:4].tolist() == [0, 1, 2, 3]
    )


@pytest.mark.parametrize("experts", [EXPERTS, 256, 300])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_ids_with_missing_cells_become_the_routing_that_they_were_read_from(
    holey: routecap.Routing, experts: int, dtype: Any
) -> None:
    """It was refused: with 16 experts, ids beyond 16 were said to be there where they are -1."""
    holey.wait()
    before = routecap.Routing.from_arrays(holey.ids(), experts=experts, tags=holey.tags)
    assert (before.mask() == VALID).all() and (before.reasons() == holey.reasons()).all()
    assert experts != EXPERTS or before == holey
    ids = before.ids(dtype)
    copy = ids.copy()
    again = routecap.Routing.from_arrays(ids, experts=experts, tags=holey.tags)
    assert again == before and (ids == copy).all()  # which may be used in place, but not written
    assert (
        routecap.Routing.from_arrays(ids, experts=experts, tags=holey.tags, trusted=True) == before
    )
    assert routecap.Routing.from_arrays(before, experts=experts, tags=before.tags) == before


@pytest.mark.parametrize("valid", [np.zeros((3, 2), bool), np.ones((3, 2), bool)])
def test_ids_without_a_cell_and_ids_without_a_hole_come_back(valid: Any) -> None:
    ids = np.where(valid[..., None], expected_ids(1, 3, layers=2, k=2, experts=16), -1)
    routing = routecap.Routing.from_arrays(ids, experts=16)
    assert (routing.mask() == valid).all() and (routing.ids() == ids).all()
    assert routing.status == (routecap.Status.OK if valid.all() else routecap.Status.NOT_CAPTURED)


def test_a_cell_that_is_missing_in_some_columns_is_refused_by_its_place() -> None:
    ids = expected_ids(1, 4, layers=3, k=2, experts=16)
    ids[2, 1, 1] = -1
    for each in (ids, ids.astype(np.int16), ids.astype(np.int64)):
        with pytest.raises(ValueError, match=r"ids\[2, 1\] is .*-1\], .*-1 in every column"):
            routecap.Routing.from_arrays(each, experts=16)


@pytest.mark.parametrize(
    ("ids", "keywords", "match"),
    [
        (
            np.full((2, 2, 1), 16),
            {"experts": 16},
            r"ids\[0, 0\] is \[16\].* in \[0, 15\].*-1 in every column",
        ),
        (np.full((2, 2, 1), 259), {"experts": 16}, r"ids\[0, 0\] is \[259\].*\[0, 15\]"),
        (np.full((2, 2, 1), -2), {"experts": 300}, r"ids\[0, 0\] is \[-2\].*\[0, 299\]"),
        (
            np.full((2, 2, 1), -1),
            {"experts": 16, "valid": np.eye(2, dtype=bool)},
            r"ids\[0, 0\] is \[-1\].*\[0, 15\]",
        ),
        (np.full((2, 2, 1), 5), {"layer_experts": [16, 4]}, r"row 0, layer 1 "),
        (np.full((2, 2, 2), 5), {"experts": 16}, r"row 0, layer 0 .*distinct"),
        (np.full((2, 2, 2), 5), {}, r"experts=.*layer_experts"),
        (np.full((2, 2), 5), {"experts": 16}, r"shape \(2, 2\), \[rows, layers, k\]"),
    ],
)
def test_arrays_that_are_no_routing_are_told_what_to_do(
    ids: Any, keywords: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        routecap.Routing.from_arrays(ids, **keywords)


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"ids": np.zeros((2, 2), np.int32), "experts": 8}, ValueError),
        ({"ids": np.zeros((2, 2, 2), np.int32)}, ValueError),
        ({"ids": np.zeros((2, 2, 2), np.int32), "experts": 8}, ValueError),  # one id twice
        ({"ids": np.full((2, 2, 1), 8), "experts": 8}, ValueError),
        ({"ids": np.full((2, 2, 1), 256 + 3), "experts": 8}, ValueError),  # would wrap
        ({"ids": np.full((2, 2, 1), -2), "experts": 8}, ValueError),
        ({"ids": np.zeros((2, 2, 1)), "experts": 8}, TypeError),
        (
            {"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "valid": np.ones((2, 1), bool)},
            ValueError,
        ),
        (
            {"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "tags": np.ones(3, np.uint64)},
            ValueError,
        ),
        ({"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "layer_map": [0]}, ValueError),
        ({"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "layer_map": [1, 0]}, ValueError),
        ({"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "first": 1 << 41}, ValueError),
        ({"ids": np.zeros((2, 2, 1), np.int32), "experts": 8, "id_space": "imaginary"}, ValueError),
    ],
)
def test_arrays_that_are_no_routing_are_refused(keywords: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised:
        routecap.Routing.from_arrays(**keywords)
    assert isinstance(raised.value, routecap.Error)


# ---- Other frameworks, pickling, copying


def test_a_routing_goes_to_other_frameworks_as_dlpack(routing: routecap.Routing) -> None:
    array = np.from_dlpack(routing)
    assert (array == expected_ids(3, 20)).all() and routing.__dlpack_device__() == (1, 0)
    wide = routecap.Routing.from_arrays(expected_ids(3, 20, experts=300), experts=300)
    array = np.from_dlpack(wide)
    assert np.shares_memory(array, wide.ids()) != array.flags.writeable
    with pytest.raises(BufferError):
        routing.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        wide.__dlpack__(copy=False)  # of a version that cannot say read-only
    with pytest.raises(BufferError):
        routing.__dlpack__(copy=False, max_version=(1, 0))  # kept as another type


def test_a_routing_is_pickled_out_of_band_without_copies(holey: routecap.Routing) -> None:
    holey.wait()
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(holey, 5, buffer_callback=buffers.append)
    assert len(data) < 1000 and len(buffers) == sum(
        (each.ids is not None) + (each.tags is not None) for each in holey.segments
    )
    first = holey.segments[0].ids
    assert first is not None and np.shares_memory(np.frombuffer(buffers[0], np.uint8), first)
    received = [bytearray(buffer) for buffer in buffers]
    back = pickle.loads(data, buffers=received)
    assert back == holey
    there = back.segments[0].ids
    assert there is not None and np.shares_memory(there, np.frombuffer(received[0], np.uint8))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_routing_is_pickled_in_band_by_every_protocol(
    routing: routecap.Routing, holey: routecap.Routing, protocol: int
) -> None:
    holey.wait()
    for each in (routing, routing[5:5], holey):
        assert pickle.loads(pickle.dumps(each, protocol)) == each


def test_copies_are_the_same_rows(routing: routecap.Routing) -> None:
    for other in (copy.copy(routing), copy.deepcopy(routing)):
        assert other == routing
        there, here = other.segments[0].ids, routing.segments[0].ids
        assert there is not None and here is not None and np.shares_memory(there, here)
        del there, here
        other.free()
    assert routing.rows == 20 and routing != routing[1:] and routing != 3
    with pytest.raises(TypeError):
        hash(routing)


def test_msgpack_carries_the_serialised_form(routing: routecap.Routing) -> None:
    msgpack = pytest.importorskip("msgpack")
    assert (
        routecap.Routing.deserialize(
            msgpack.unpackb(msgpack.packb({"routing": routing.serialize()}))["routing"]
        )
        == routing
    )


def test_a_freed_routing_is_an_error_and_its_arrays_are_not(routing: routecap.Routing) -> None:
    ids = routing.ids()
    with routing:
        pass
    routing.free()
    assert routing.freed and repr(routing) == "<routecap.Routing, freed>"
    for use in (
        lambda: routing.rows,
        routing.wait,
        routing.ids,
        routing.serialize,
        lambda: routing.status,
        lambda: routecap.merge([routing]),
    ):
        with pytest.raises(routecap.Error, match="freed") as raised:
            use()
        assert raised.value.status == routecap.Status.ERR_STATE
    assert (ids == expected_ids(3, 20)).all()


def test_a_pending_routing_says_so(make: Any) -> None:
    capturer = make(manual_progress=True)
    request = capturer.open()
    capturer.begin(3)
    capturer.snapshot()
    capturer.issue(routecap.spans(1, request=int(request), rows=3))
    routing = request.finish()
    assert (
        routing.status == routecap.Status.PENDING
        and not routing.ready
        and repr(routing) == "<routecap.Routing, pending>"
    )
    for use in (
        lambda: routing.rows,
        routing.ids,
        routing.coverage,
        routing.serialize,
        lambda: routing.split(1),
        lambda: routing[0],
    ):
        with pytest.raises(TimeoutError) as raised:
            use()
        assert raised.value.status == routecap.Status.ERR_NOT_READY  # type: ignore[attr-defined]
    assert routing.wait(0) == routecap.Status.NOT_CAPTURED  # which makes progress here
    assert routing.rows == 3 and not routing.mask().any()
