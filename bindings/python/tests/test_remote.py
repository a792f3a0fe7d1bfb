"""Rows across machines, in files and in memory: a rank reads what its plan names, and what cannot be
had is missing, never wrong. Other stores are in remote/."""

import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import routecap
from routecap import remote

LAYERS, K, EXPERTS = 6, 4, 32
SHAPE: dict[str, Any] = {"layers": LAYERS, "k": K, "experts": EXPERTS}


def routing_of(rows: int, seed: int = 0, first: int = 0, tag: int = 3) -> routecap.Routing:
    ids = np.random.default_rng(seed).random((rows, LAYERS, EXPERTS)).argsort(axis=2)[:, :, :K]
    return routecap.Routing.from_arrays(
        ids.astype(np.uint8), experts=EXPERTS, first=first, tags=tag
    )


@pytest.fixture(params=["file", "memory"])
def store(request: Any, tmp_path: Any) -> Iterator[remote.ObjectStore]:
    place = tmp_path if request.param == "file" else f"/{tmp_path.name}"
    made = remote.connect(f"{request.param}://{place}")
    yield made
    made.close()


class Counting:
    """A store that counts calls, and changes what it is told to."""

    def __init__(self, store: Any) -> None:
        self.store, self.scheme, self.calls = store, store.scheme, []
        self.damage = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def read(self, keys: Any, offsets: Any, into: Any) -> Any:
        self.calls.append(len(keys))
        said = self.store.read(keys, offsets, into)
        for offset, memory in zip(offsets, into):
            if 0 <= self.damage - offset < len(memory):
                memory[self.damage - offset] ^= 1
        return said


def plan_of(lengths: list[int], **rank: Any) -> routecap.Plan:
    return routecap.Plan(lengths, layers=LAYERS, k=K, experts=EXPERTS, **rank)


@pytest.mark.parametrize("rank", [{}, {"context": "zigzag", "context_size": 2, "context_rank": 1}])
def test_a_rank_gets_what_it_would_get_from_the_routings(store: Any, rank: Any) -> None:
    routings = [routing_of(rows, rows) for rows in (40, 7, 300)]
    references = [remote.write(store, each, generation=3) for each in routings]
    plan = plan_of([each.rows + 1 for each in routings], **rank)
    counting = Counting(store)
    reader = remote.Reader(counting, **SHAPE)
    for again in range(2):
        sources = [reader.rows(json.loads(json.dumps(each.to_dict()))) for each in references]
        got, expected = plan.gather(sources), plan.gather(routings)
        assert np.array_equal(got.ids, expected.ids) and got.report == expected.report
    # Headers in one call, rows in another.
    assert len(counting.calls) == 4 and counting.calls[0] == 3
    report = reader.report
    assert report.missing == {} and report.ranges == 2 * len(plan.ranges)
    assert report.rows == 2 * int(plan.ranges["rows"].sum())


def test_headers_are_read_once_by_who_keeps_its_sources(store: Any) -> None:
    counting = Counting(store)
    rows = remote.Reader(counting, **SHAPE).rows(remote.write(store, routing_of(50)))
    for first in (0, 10, 20):
        got = rows.read(first, 10)
        assert got is not None
        assert np.array_equal(got.ids(), routing_of(50).ids()[first : first + 10])
    assert len(counting.calls) == 4


def test_a_long_header_is_read_in_a_second_call(store: Any) -> None:
    whole = routing_of(400)
    reasons = np.zeros((400, LAYERS), np.uint8)
    reasons[::2] = int(routecap.Missing.LOST)
    whole = routecap.Routing.from_arrays(
        whole.ids(np.int16), experts=EXPERTS, valid=reasons == 0, reasons=reasons
    )
    reader = remote.Reader(store, **SHAPE)
    reference = remote.write(store, whole)
    assert routecap.serialized_info(whole.serialize()).header_bytes > 4096
    read = reader.rows(reference).read(0, 400)
    assert read is not None and np.array_equal(read.reasons(), reasons)
    assert np.array_equal(read.ids(), whole.ids())


# The checks of all rows were read for any of them: 8 % more than the plan for an eighth of the rows.
@pytest.mark.parametrize("rows", [1800, 4000])
def test_an_eighth_of_an_object_takes_an_eighth_of_its_bytes(store: Any, rows: int) -> None:
    shape: dict[str, Any] = {"layers": 48, "k": 8, "experts": 128}
    ids = (np.arange(rows * 48).reshape(rows, 48, 1) * 7 + np.arange(8)) % 128
    whole = routecap.Routing.from_arrays(ids.astype(np.uint8), experts=128)
    reference = remote.write(store, whole)
    for rank in range(8):
        counting = Counting(store)
        reader = remote.Reader(counting, **shape)
        plan = routecap.Plan(
            [rows + 1], **shape, context="zigzag", context_size=8, context_rank=rank
        )
        got, expected = plan.gather([reader.rows(reference)]), plan.gather([whole])
        assert np.array_equal(got.ids, expected.ids) and got.report == expected.report
        assert len(counting.calls) == 2
        assert reader.report.bytes <= 1.05 * plan.rows_needed * 48 * 8


@pytest.mark.parametrize("reasons", ["none", "the first row", "every third row"])
def test_any_part_of_a_long_object_is_what_was_written(store: Any, reasons: str) -> None:
    lost = np.zeros((1201, LAYERS), np.uint8)
    if reasons == "the first row":
        lost[0] = int(routecap.Missing.LOST)
    if reasons == "every third row":
        lost[::3] = int(routecap.Missing.LOST)
    whole = routecap.Routing.from_arrays(
        routing_of(1201).ids(np.int16), first=9, experts=EXPERTS, valid=lost == 0, reasons=lost
    )
    sources = remote.Reader(store, **SHAPE).rows(remote.write(store, whole))
    for first, rows in ((9, 1201), (10, 1200), (9, 1200), (9, 1), (700, 16), (1209, 1)):
        got = sources.read(first, rows)
        assert got is not None and bytes(got) == bytes(whole.slice(first, rows))


def test_no_byte_of_a_long_object_that_changed_on_its_way_is_a_row(store: Any) -> None:
    counting = Counting(store)
    whole = routing_of(1200)
    reference, info = remote.write(store, whole), routecap.serialized_info(whole.serialize())
    tables, stride = 88 + 24 * LAYERS + 24, (reference.bytes - info.header_bytes) // 1200
    reader = remote.Reader(counting, **SHAPE)
    parts = {
        "tables": range(tables),
        "checks": range(tables + 4 * 500, tables + 4 * 504),
        "rows": range(info.header_bytes + stride * 500, info.header_bytes + stride * 504),
    }
    for changed in parts.values():
        for counting.damage in changed:
            got = reader.rows(reference).read(500, 4)
            assert got is not None
            assert set(got.reasons().ravel().tolist()) == {int(routecap.Missing.LOST)}
    assert reader.report.missing == {"refused": 4 * sum(map(len, parts.values()))}


def test_a_whole_long_object_is_read_in_two_ranges(store: Any) -> None:
    counting = Counting(store)
    reader = remote.Reader(counting, **SHAPE)
    got = reader.rows(remote.write(store, routing_of(1200))).read(0, 1200)
    assert got is not None and np.array_equal(got.ids(), routing_of(1200).ids())
    assert counting.calls == [1, 1]


def test_what_is_gone_is_missing_with_its_reason(store: Any) -> None:
    routings = [routing_of(20, seed) for seed in range(3)]
    references = [remote.write(store, each) for each in routings]
    reader = remote.Reader(store, **SHAPE)
    sources = [reader.rows(each) for each in references]
    assert sources[2].read(0, 1) is not None  # its header is known
    store.delete([references[1].key, references[2].key])
    store.delete([references[1].key])
    gathered = plan_of([21] * 3).gather(sources)
    expected = plan_of([21] * 3).gather([routings[0], None, None])
    assert np.array_equal(gathered.ids, expected.ids)
    assert gathered.report == expected.report and gathered.report.rows_lost == 40
    assert reader.report.missing == {"evicted": 40}
    gone = sources[1].read(5, 3)
    assert gone is not None and (gone.first, gone.rows, gone.status) == (
        5,
        3,
        routecap.Status.NOT_CAPTURED,
    )
    assert set(gone.reasons().ravel().tolist()) == {int(routecap.Missing.EVICTED)}
    assert "evicted" in reader.log[-1] and references[1].key in reader.log[-1]


def test_no_byte_that_changed_on_its_way_is_a_row(store: Any) -> None:
    counting = Counting(store)
    whole = routing_of(9)
    reference = remote.write(store, whole)
    reader = remote.Reader(counting, **SHAPE)
    for counting.damage in range(reference.bytes):
        got = reader.rows(reference).read(2, 4)
        assert got is not None
        refused = set(got.reasons().ravel().tolist()) == {int(routecap.Missing.LOST)}
        assert refused or np.array_equal(got.ids(), whole.ids()[2:6]), counting.damage
        assert refused or counting.damage >= 192  # every byte of the header is looked at
    assert reader.report.missing["refused"] >= 4 * (192 + 4 * (LAYERS * K + 4))


def test_objects_that_are_not_what_they_should_be_are_refused(store: Any) -> None:
    reference = remote.write(store, routing_of(20), generation=3)

    def missing(reference: Any, shape: Any = SHAPE, **more: Any) -> Any:
        reader = remote.Reader(store, **shape, **more)
        got = reader.rows(reference).read(0, 20)
        assert got is not None and not got.mask().any()
        return reader.report.missing

    assert missing(reference, SHAPE | {"k": 3}) == {"refused": 20}
    assert missing(reference, SHAPE | {"experts": 64}) == {"refused": 20}
    assert missing(reference, SHAPE | {"layer_map": [0, 1, 2, 3, 4, 6]}) == {"refused": 20}
    assert missing(reference, SHAPE | {"id_space": "physical"}) == {"refused": 20}
    assert missing(reference, max_object_bytes=reference.bytes - 1) == {"refused": 20}
    assert missing(reference, oldest=4) == {"stale": 20}
    assert missing(reference._replace(generation=4), oldest=4) == {"stale": 20}
    assert missing(reference._replace(bytes=reference.bytes - 4)) == {"refused": 20}
    assert missing(reference._replace(digest="0" * 32)) == {"refused": 20}
    assert missing(reference._replace(rows=21)) == {"refused": 20}
    assert missing(reference._replace(scheme="gopher")) == {"refused": 20}
    store.write("other", bytes(reference.bytes))
    assert missing(reference._replace(key="other")) == {"refused": 20}
    with pytest.raises(MemoryError):
        remote.Reader(store, **SHAPE, max_read_bytes=100).rows(reference).read(0, 20)


@pytest.mark.parametrize(
    "change",
    [
        {"key": "../x"},
        {"key": "/etc/passwd"},
        {"key": "a/../../b"},
        {"key": ""},
        {"key": "k" * 2000},
        {"rows": -1},
        {"rows": True},
        {"bytes": 1 << 60},
        {"first": "0"},
        {"digest": "f" * 31},
        {"digest": None},
        {"generation": 1 << 64},
    ],
)
def test_references_of_others_are_checked(store: Any, change: Any) -> None:
    sent = remote.write(store, routing_of(2)).to_dict()
    assert set(sent) == {"scheme", "key", "first", "rows", "bytes", "digest", "generation"}
    assert remote.Reference.from_dict(sent).to_dict() == sent
    with pytest.raises(ValueError, match="reference|key"):
        remote.Reference.from_dict(sent | change)
    with pytest.raises(ValueError, match="missing"):
        remote.Reference.from_dict({name: sent[name] for name in sent if name not in change})


def test_a_url_with_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="password"):
        remote.connect("ftp://me:secret@host/path")


def test_memory_is_used_again_when_nobody_reads_it(store: Any) -> None:
    class Registering(Counting):
        registered = 0

        def register(self, address: int, size: int) -> None:
            self.registered += 1

    counting = Registering(store)
    reader = remote.Reader(counting, **SHAPE)
    rows = reader.rows(remote.write(store, routing_of(200)))
    for _ in range(20):
        got = rows.read(0, 100)
    first, kept = got, rows.read(100, 100)
    assert counting.registered <= 3
    assert first is not None and kept is not None
    assert np.array_equal(first.ids(), routing_of(200).ids()[:100])
    assert np.array_equal(kept.ids(), routing_of(200).ids()[100:])


def test_a_conversation_is_references_and_spans(store: Any) -> None:
    whole = routing_of(60, 5)
    tokens = np.arange(60)
    known, sent = routecap.Sequence.like(whole), remote.Conversation()
    # Two turns of which the second computes its prompt anew, and one that diverges.
    calls = [
        (tokens[:20], whole.slice(0, 19)),
        (tokens[:50], whole.slice(0, 49)),
        (np.concatenate([tokens[:30], [99, 98, 97]]), routing_of(32, 6)),
    ]
    for ids, routing in calls:
        report = known.append(ids, routing)
        assert sent.append(ids, remote.write(store, routing)).tokens == report.tokens
    again = remote.Conversation.from_dict(json.loads(json.dumps(sent.to_dict())))
    for each in (sent, again):
        assert len(each) == 33
        assert [(span.first, span.rows) for span in each.spans] == [
            (span.first, span.rows) for span in known.spans()
        ]
        plan = plan_of([33])
        reader = remote.Reader(store, **SHAPE)
        got, expected = plan.gather([each.sources(reader)]), plan.gather([known.routing()])
        assert np.array_equal(got.ids, expected.ids) and got.report == expected.report
        assert got.report.rows_lost == 0
    with pytest.raises(ValueError, match="no conversation"):
        remote.Conversation.from_dict({"sequence": "", "references": []})
    with pytest.raises(ValueError, match="no reference"):
        remote.Conversation.from_dict(sent.to_dict() | {"references": []})


def test_forks_of_a_conversation_share_the_references_before_them(store: Any) -> None:
    whole, other = routing_of(40, 7), routing_of(40, 8)
    tokens, sent = np.arange(41), remote.Conversation()
    sent.append(tokens[:30], remote.write(store, whole.slice(0, 29)))
    fork = sent.fork(20)
    sent.append(tokens, remote.write(store, whole))
    changed = np.concatenate([tokens[:20], 100 + tokens[20:]])
    fork.append(changed, remote.write(store, other))
    reader = remote.Reader(store, **SHAPE)
    got = sent.routing(reader)
    assert got.complete and np.array_equal(got.ids(), whole.ids())
    calls = reader.report.calls
    got = fork.routing(reader)
    assert got.complete and reader.report.calls == calls + 2  # headers, and all ranges of both
    assert [(each.first, each.rows) for each in fork.spans] == [(0, 20), (20, 20)]
    assert np.array_equal(got.ids()[:20], whole.ids()[:20])
    assert np.array_equal(got.ids()[20:], other.ids()[20:])
    sent.truncate(11)
    assert len(sent) == 11
    assert np.array_equal(sent.routing(reader).ids(), whole.ids()[:10])


def test_rows_of_a_conversation_that_are_gone_are_missing(store: Any) -> None:
    whole, tokens, sent = routing_of(40, 7), np.arange(41), remote.Conversation()
    references = [remote.write(store, whole.slice(*part)) for part in ((0, 19), (19, 21))]
    sent.append(tokens[:20], references[0])
    sent.append(tokens, references[1])
    store.delete([references[0].key])
    reader = remote.Reader(store, **SHAPE)
    got = sent.routing(reader)
    assert got.mask().all(axis=1).tolist() == [row >= 19 for row in range(40)]
    assert reader.report.missing == {"evicted": 19}
    assert np.array_equal(got.ids()[19:], whole.ids()[19:])


def test_a_sequence_says_where_references_are_appended(store: Any) -> None:
    sequence = routecap.Sequence(LAYERS, K, EXPERTS)
    reference: Any = remote.write(store, routing_of(4))
    with pytest.raises(ValueError, match="append references to a routecap.remote.Conversation"):
        sequence.append(np.arange(5), reference)


def test_a_store_that_does_not_answer_costs_rows_and_its_seconds() -> None:
    import fsspec

    place = "memory://hanging"
    reference = remote.write(remote.connect(place), routing_of(20))
    answer = threading.Event()
    store: Any = remote.connect(place)
    reader = remote.Reader(store, **SHAPE)
    rows = reader.rows(reference)
    assert rows.read(0, 1) is not None  # its header is known
    own = fsspec.filesystem("memory")
    read, came = own.cat_ranges, threading.Event()

    def late(*args: Any, **kwargs: Any) -> Any:
        answer.wait()
        try:
            return read(*args, **kwargs)
        finally:
            came.set()

    own.cat_ranges, store.seconds = late, 0.05
    try:
        got = rows.read(0, 20)
        assert got is not None and not got.mask().any()
        assert reader.report.missing == {"evicted": 20} and "no answer" in reader.log[-1]
        # What comes later lands in memory of which nobody else has a part.
        others = [reader.rows(remote.write(store, routing_of(20, seed))) for seed in (1, 2)]
        own.cat_ranges, store.seconds = read, 60
        taken = [each.read(0, 20) for each in others]
        answer.set()
        assert came.wait(10)
        for seed, each in zip((1, 2), taken):
            assert each is not None and np.array_equal(each.ids(), routing_of(20, seed).ids())
    finally:
        own.cat_ranges = read
        answer.set()


# ---- What vLLM wrote itself

BLOCK, DECODER = 4, LAYERS + 1


def vllm_blocks(store: Any, rows: Any, ends: list[int]) -> list[str]:
    """Write rows [rows, decoder's layers, k] as vLLM does: an object for each block, and objects of
    what is left at the ends of a request."""
    keys = []
    for first, end in zip([0, *ends], [*ends, len(rows)]):
        key = f"vllm-artifact/0/{hashlib.sha256(bytes([first])).hexdigest()}"
        keys.append(store.write(key, rows[first:end].tobytes(order="C")))
    return keys


def vllm_reader(store: Any) -> remote.Reader:
    return remote.Reader(store, **SHAPE, layer_map=range(1, DECODER))  # the first layer is dense


def vllm_rows(count: int, seed: int = 0) -> Any:
    dense = np.zeros((count, 1, K), np.uint8)
    return np.concatenate([dense, routing_of(count, seed).ids(np.uint8)], axis=1)


def blocks_of(reader: Any, store: Any, keys: Any, rows: int, first: int = 0) -> Any:
    return reader.blocks(
        keys, rows=rows, block_rows=BLOCK, first=first, layers=DECODER, scheme=store.scheme
    )


def test_a_rank_reads_the_blocks_that_vllm_wrote(store: Any) -> None:
    rows = vllm_rows(15)
    # From row 2 on: the end of its first block, whole blocks, and one token by itself.
    keys = vllm_blocks(store, rows, [2, 6, 10, 14])
    counting = Counting(store)
    plan = routecap.Plan([18], layers=range(1, DECODER), k=K, experts=EXPERTS)
    reader = vllm_reader(counting)
    expected = routecap.Routing.from_arrays(
        rows[:, 1:], experts=EXPERTS, first=2, layer_map=range(1, DECODER)
    )
    got = plan.gather([blocks_of(reader, store, keys, 15, 2)])
    assert np.array_equal(got.ids, plan.gather([expected]).ids)
    assert counting.calls == [5]
    some = blocks_of(reader, store, keys, 15, 2).read(5, 4)
    assert some.first == 5 and np.array_equal(some.ids(), rows[3:7, 1:])
    assert reader.report.missing == {}


@pytest.mark.parametrize(
    ("gone", "there"),
    [
        ([1], [(0, 4), (8, 14)]),  # a block: as the others add up, it is known where they are
        ([1, 2], [(0, 4), (12, 14)]),
        ([3], [(0, 12)]),  # the last one: it had two rows, or another had fewer
        ([0, 3], []),
        ([0, 1, 2, 3], []),
    ],
)
def test_a_block_that_is_gone_shifts_no_row(store: Any, gone: Any, there: Any) -> None:
    rows = vllm_rows(14)
    keys = vllm_blocks(store, rows, [4, 8, 12])
    store.delete([keys[i] for i in gone])
    reader = vllm_reader(store)
    got = blocks_of(reader, store, keys, 14).read(0, 14)
    valid = np.zeros(14, bool)
    for first, end in there:
        valid[first:end] = True
    assert np.array_equal(got.mask(), valid[:, None].repeat(LAYERS, 1)), reader.log
    assert np.array_equal(got.ids()[valid], rows[valid, 1:])
    assert set(got.reasons()[~valid].ravel().tolist()) == {int(routecap.Missing.EVICTED)}
    assert reader.report.missing == {"evicted": int((~valid).sum())}


def test_bytes_that_cannot_be_rows_are_missing(store: Any) -> None:
    rows = vllm_rows(8)
    rows[2] = 0  # what was never captured
    rows[5, 3, 1] = EXPERTS
    keys = vllm_blocks(store, rows, [4])
    reader = vllm_reader(store)
    got = blocks_of(reader, store, keys, 8).read(0, 8)
    missing = np.zeros((8, LAYERS), bool)
    missing[2], missing[5, 2] = True, True
    assert np.array_equal(~got.mask(), missing) and reader.report.missing == {"refused": 2}
    assert set(got.reasons()[missing].tolist()) == {int(routecap.Missing.LOST)}

    def refused(rows: int, layers: int = DECODER, block: int = BLOCK) -> None:
        reader = vllm_reader(store)
        got = reader.blocks(
            keys, rows=rows, block_rows=block, layers=layers, scheme=store.scheme
        ).read(0, 8)
        assert got is not None and not got.mask().any()
        assert set(got.reasons().ravel().tolist()) == {int(routecap.Missing.LOST)}

    refused(7)  # these keys are of other tokens
    refused(9)
    refused(8, layers=DECODER + 1)
    refused(8, block=2)
    with pytest.raises(routecap.ArgumentError, match="do not have layer 6"):
        vllm_reader(store).blocks(keys, rows=8, block_rows=BLOCK, scheme=store.scheme)
    with pytest.raises(routecap.ArgumentError, match="no store"):
        vllm_reader(store).blocks(keys, rows=8, block_rows=BLOCK, layers=DECODER, scheme="ray")
