"""Rows of prefixes: published, adopted, brought elsewhere."""

import gc
import hashlib
import struct

import numpy as np
import pytest
import routecap
from routecap_testing.helpers import EXPERTS, K, LAYERS, ROWS, expected_ids, run
from routecap import Missing

SHAPE = {"layers": LAYERS, "k": K, "experts": EXPERTS}


@pytest.fixture
def capturer():
    with routecap.Capturer(**SHAPE, rows=ROWS) as capturer:
        yield capturer


def published(capturer, store, keys, rows=32):
    """A request that published as many blocks as there are keys."""
    ids = expected_ids(1, rows)
    request = capturer.open()
    run(capturer, request, ids)
    request.publish(store, 0, keys)
    request.coverage()  # which waits until it was applied
    return request, ids


def finished(request, rows):
    routing = request.finish(rows)
    routing.wait(10)
    return routing.ids()


def test_a_prefix_comes_from_the_request_that_computed_it(capturer):
    store = routecap.Store(capturer, block_rows=16)
    keys = store.keys(range(32), seed=b"model@1")
    _, ids = published(capturer, store, keys)
    assert store.leading(keys) == 2
    request = capturer.open()
    found = request.adopt(store, 0, keys)
    assert found == routecap.Adoption(32, 2, 0, 0, 0)
    np.testing.assert_array_equal(finished(request, 32), ids)
    stats = store.stats()
    assert (stats.blocks_published, stats.blocks_adopted, stats.blocks) == (2, 2, 2)


def test_what_is_not_there_says_why(capturer):
    store = routecap.Store(capturer, block_rows=8, key_bytes=8)
    published(capturer, store, [1, 2, 3])
    assert store.evict([2]) == 1
    request = capturer.open()
    assert request.adopt(store, 0, [1, 2, 9, 3]) == routecap.Adoption(8, 2, 1, 1, 0)
    reasons = [(block["first"], Missing(block["reason"])) for block in request.missing()]
    assert reasons == [(8, Missing.EVICTED), (16, Missing.NOT_PUBLISHED)]
    store.advance(1)
    assert store.reasons([1, 2, 9]).tolist() == [
        Missing.STALE,
        Missing.EVICTED,
        Missing.NOT_PUBLISHED,
    ]
    assert store.generation == 1


def test_batches(capturer):
    store = routecap.Store(capturer, block_rows=8, key_bytes=8)
    ids = expected_ids(1, 16)
    requests = [capturer.open() for _ in range(2)]
    for request in requests:
        run(capturer, request, ids)
    items = [(requests[0], 0, [1]), (requests[1], 8, [2]), (requests[1], 16, [3])]
    assert capturer.publish_batch(store, items).tolist() == [0, 0, routecap.Status.ERR_OUT_OF_RANGE]
    with pytest.raises(routecap.PartialError) as refused:
        capturer.publish_batch(store, items, check=True)
    assert list(refused.value.statuses) == [2]
    adopted = capturer.adopt_batch(store, [(capturer.open(), 0, [1, 2])])
    assert (adopted["found"], adopted["rows"], adopted["status"]) == (2, 16, 0)
    assert len(capturer.publish_batch(store, [])) == len(capturer.adopt_batch(store, [])) == 0


def test_blocks_travel_as_a_routing(capturer):
    store = routecap.Store(capturer, block_rows=8, key_bytes=8)
    ids = expected_ids(1, 32)
    run(capturer, (request := capturer.open()), ids, tag=7)
    request.publish(store, 0, [1, 2])
    sender = capturer.open()
    sender.adopt(store, 0, [1, 2])
    sent = sender.finish(16)
    sent.wait(10)
    with routecap.Capturer(**SHAPE, rows=ROWS) as elsewhere:
        other = routecap.Store(elsewhere, block_rows=8, key_bytes=8, generation=7)
        receiver = elsewhere.open()
        receiver.attach(routecap.Routing.deserialize(sent.serialize()))
        receiver.publish(other, 0, [1, 2], generation=7)
        request = elsewhere.open()
        assert request.adopt(other, 0, [1, 2], generation=7).found == 2
        routing = request.finish(16)
        routing.wait(10)
    np.testing.assert_array_equal(routing.ids(), ids[:16])
    assert (routing.tags == 7).all()


def test_retained_blocks_stay(capturer):
    store = routecap.Store(capturer, block_rows=8, key_bytes=8)
    published(capturer, store, [1, 2])
    assert store.retain([1, 7]).tolist() == [0, Missing.NOT_PUBLISHED]
    assert store.stats().blocks_retained == 1
    store.release([1])
    assert store.stats().blocks_retained == 0


def test_keys_are_digests_of_all_tokens_before():
    tokens = np.arange(0, 10_000, 1000)
    keys = routecap.key_chain(tokens, 4, seed=b"model@7", key_bytes=16)
    person = b"routecap" + struct.pack("<2I", 4, 0)
    before = b"model@7"
    for key, first in zip(keys, (0, 4)):
        words = struct.pack("<4i", *tokens[first : first + 4])
        before = hashlib.blake2b(before + words, digest_size=16, person=person).digest()
        assert key.tobytes() == before
    again = routecap.key_chain(tokens[4:], 4, seed=keys[0].tobytes(), key_bytes=16)
    assert again.tobytes() == keys[1].tobytes()


def test_keys_of_any_form_are_the_same_and_wrong_ones_are_refused(capturer):
    store = routecap.Store(capturer, block_rows=8, key_bytes=8)
    published(capturer, store, [1, 2])
    words = [(1).to_bytes(8, "little"), (2).to_bytes(8, "little")]
    array = np.frombuffer(b"".join(words), np.uint8).reshape(2, 8)
    for keys in (words, b"".join(words), array, np.array([1, 2]), [1, 2]):
        assert store.leading(keys) == 2
    for wrong in (
        [b"1234567"],
        b"1234567",
        array[:, :4],
        array[:, ::-1],
        np.zeros(2, np.int32),
        [-1],
        3,
    ):
        with pytest.raises((routecap.Error, TypeError)):
            store.leading(wrong)


def test_rows_outlive_their_store(capturer):
    with routecap.Store(capturer, block_rows=8, key_bytes=8) as store:
        _, ids = published(capturer, store, [1, 2])
        request = capturer.open()
        request.adopt(store, 0, [1, 2])
    gc.collect()
    np.testing.assert_array_equal(finished(request, 16), ids[:16])
    with pytest.raises(routecap.Error):
        store.stats()


def test_another_shape_is_refused(capturer):
    store = routecap.Store(block_rows=8, key_bytes=8, layers=LAYERS + 1, k=K, experts=EXPERTS)
    with pytest.raises(routecap.Error) as refused:
        capturer.open().adopt(store, 0, [1])
    assert refused.value.status == routecap.Status.ERR_SHAPE_MISMATCH
