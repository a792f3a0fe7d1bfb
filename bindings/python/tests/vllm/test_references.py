"""References to rows in a store that is in a file, and the file."""

import json
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import routecap
from routecap import Missing, vllm
from routecap.vllm import _answers, _asked, _references, _scheduler, _store_file, _transport
from routecap.vllm import _server as server
from routecap.vllm._prefixes import content_keys
from routecap.vllm._results import Blocks, PendingRoutedExperts

ROWS, SIZE = 11, 4
IDS = (np.arange(ROWS * 3)[:, None] * 3 % 60 + np.arange(4)).reshape(ROWS, 3, 4).astype(np.int16)
KEYS = [bytes([i]) * 32 for i in range(ROWS // SIZE)]
SHAPE = {"layers": 3, "k": 4, "experts": 64}


class Engine:
    """Has a store in a file."""

    made = []

    def __init__(self, path):
        self.made.append(self)
        self.capturer = routecap.Capturer(rows=64, **SHAPE)
        self.store = _store_file.make(
            str(path), self.capturer, block_rows=SIZE, key_bytes=32, budget_bytes=1 << 20
        )

    def publish(self, ids=IDS, keys=KEYS, version=0):
        """In steps, as rows that are attached are older than a store's generation."""
        request = self.capturer.open()
        self.capturer.begin(len(ids))
        for layer in range(3):
            self.capturer.record(layer, np.ascontiguousarray(ids[:, layer]))
        self.capturer.snapshot()
        step = self.capturer.issue(routecap.spans(request=request, rows=len(ids)), tag=version)
        request.publish(self.store, 0, content_keys(keys, [version] * len(keys)))
        step.wait()
        routing = request.finish(len(ids))
        routing.wait()
        while self.store.stats().blocks_in_flight:
            pass
        rows = PendingRoutedExperts(routing, ids.shape, -1)
        rows.blocks = Blocks(SIZE, keys)
        return rows

    def end(self):
        self.store.close()
        self.capturer.close()


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTECAP_VLLM_STORE_FILE", str(tmp_path / "store"))
    yield tmp_path / "store"
    while Engine.made:
        Engine.made.pop().end()


@pytest.fixture
def engine(path):
    return Engine(path)


def referred(rows, start=0):
    asked = _asked.Asked(format="store", start=start)
    answer = _answers.Answer(rows[start:], asked).for_json()
    assert list(answer) == ["routed_experts"], answer
    return json.loads(json.dumps(answer["routed_experts"]))


@pytest.mark.parametrize("start", [0, 3, 4, 7, 8, 10])
def test_a_reference_gives_the_rows_from_a_start_on(engine, start):
    reference = referred(engine.publish(), start)
    assert reference["start"] == start and reference["shape"] == [ROWS - start, 3, 4]
    routing = vllm.read(reference)
    assert (routing.first, routing.rows, routing.complete) == (start, ROWS - start, True)
    np.testing.assert_array_equal(routing.ids(), IDS[start:])


def test_a_reference_is_to_the_blocks_of_its_weights(engine):
    engine.publish()
    other = (IDS + 1) % 60
    reference = referred(engine.publish(other[:8], version=3))
    assert routecap.Routing.deserialize(_answers.base64.b64decode(reference["rest"])).rows == 0
    routing = vllm.read(reference)
    np.testing.assert_array_equal(routing.ids(), other[:8])
    assert routing.tags.tolist() == [3] * 8


def test_whole_blocks_are_a_reference_without_rows_of_its_own(engine):
    reference = referred(engine.publish(IDS[:8]))
    assert routecap.Routing.deserialize(_answers.base64.b64decode(reference["rest"])).rows == 0
    np.testing.assert_array_equal(vllm.read(reference).ids(), IDS[:8])


def test_a_client_that_has_no_engine_reads_it(engine):
    reference = referred(engine.publish())
    script = (
        "import json, sys, routecap.vllm\n"
        "routing = routecap.vllm.read(json.load(sys.stdin))\n"
        "assert 'vllm' not in sys.modules and 'torch' not in sys.modules\n"
        "print(json.dumps(routing.ids().tolist()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(reference),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == IDS.tolist()


def test_what_the_store_does_not_have_or_has_of_another_request_is_in_the_reference(engine):
    engine.publish()
    other = IDS.copy()
    other[5] = (other[5] + 1) % 60
    for ids, own in ((IDS, 3), (other, 7)):
        rows = engine.publish(ids)
        reference = referred(rows)
        rest = routecap.Routing.deserialize(_answers.base64.b64decode(reference["rest"]))
        assert rest.rows == own
        np.testing.assert_array_equal(vllm.read(reference).ids(), ids)
    rows = engine.publish()
    engine.store.evict(KEYS)
    reference = referred(rows)
    assert reference["keys"] == ""
    np.testing.assert_array_equal(vllm.read(reference).ids(), IDS)
    rows.blocks = None  # of an engine without a prefix cache
    np.testing.assert_array_equal(vllm.read(referred(rows)).ids(), IDS)


def test_rows_that_have_gone_are_missing_with_their_reason(engine):
    reference = referred(engine.publish())
    engine.store.evict(KEYS[:1])
    routing = vllm.read(reference)
    assert routing.reasons()[:, 0].tolist() == [Missing.EVICTED] * 4 + [0] * 7
    np.testing.assert_array_equal(routing.ids(fill=-1)[4:], IDS[4:])
    engine.store.advance(1)
    routing = vllm.read(reference)
    assert set(routing.reasons()[4:8].ravel()) == {Missing.STALE}
    np.testing.assert_array_equal(routing.ids(fill=-1)[8:], IDS[8:])
    other = IDS[::-1].copy()
    reference = referred(engine.publish(other, version=1))
    routing = vllm.read(reference)
    np.testing.assert_array_equal(routing.ids(), other)
    assert routing.tags.tolist() == [1] * ROWS


def test_a_child_of_a_client_reads_it_too(engine):
    reference = referred(engine.publish())
    assert vllm.read(reference).complete
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, as in a client
        child = os.fork()
    if child == 0:
        os._exit(0 if (vllm.read(reference).ids() == IDS).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_keys_travel_with_the_rows_to_the_front_end(engine):
    rows = engine.publish()
    came = _transport.from_bytes(_transport.to_bytes(rows), -1)
    assert came.blocks == rows.blocks and came[2:].blocks == rows.blocks
    np.testing.assert_array_equal(vllm.read(referred(came)).ids(), IDS)
    rows.blocks = None
    came = _transport.from_bytes(_transport.to_bytes(rows), -1)
    assert came.blocks is None
    np.testing.assert_array_equal(came.array(), IDS)


def test_a_store_is_refused_where_none_is_named(monkeypatch):
    with pytest.raises(ValueError, match="'store', and this process has no ROUTECAP_VLLM_STORE_F"):
        server.check(_asked.Asked(format="store"))
    monkeypatch.setenv("ROUTECAP_VLLM_STORE_FILE", "somewhere")
    server.check(_asked.Asked(format="store"))


# ---- The scheduler


class Scheduler:
    def __init__(self):
        model = SimpleNamespace(enable_return_routed_experts=False)
        self.vllm_config = SimpleNamespace(model_config=model)

    def _handle_stopped_request(self, request):
        return True


def test_the_scheduler_says_the_blocks_of_requests_that_want_a_reference(engine):
    scheduler = type("Telling", (_scheduler.TellingScheduler, Scheduler), {})()
    scheduler._prefixes, scheduler._hash_rows = SimpleNamespace(), SIZE
    rows = engine.publish()
    for name, form in (("a", "store"), ("b", "file"), ("c", None)):
        asked = {"routed_experts_format": form} if form else None
        request = SimpleNamespace(
            request_id=name,
            num_tokens=ROWS + 1,
            block_hashes=[*KEYS, b"of tokens that were not input"],
            sampling_params=SimpleNamespace(extra_args=asked),
        )
        scheduler._handle_stopped_request(request)
    scheduler._capturer = SimpleNamespace(end=lambda ends: {name: rows[:] for name in ends})
    ended = scheduler._end(scheduler._ended)
    assert ended["a"].blocks == Blocks(SIZE, KEYS)
    assert ended["b"].blocks is None and ended["c"].blocks is None
    assert not scheduler._blocks


# ---- The file


def test_engines_share_a_file_that_one_of_them_has_open_and_others_make_it_anew(path):
    first, second = Engine(path), Engine(path)
    reference = referred(first.publish())
    assert second.store.leading(KEYS) == 2
    first.end()
    third = Engine(path)  # the second is there
    assert third.store.leading(KEYS) == 2
    old = path.resolve()
    second.end(), third.end()
    assert vllm.read(reference).complete  # until another engine begins
    last = Engine(path)
    assert path.resolve() != old and not old.exists()
    assert last.store.leading(KEYS) == 0
    assert sorted(each.name for each in path.parent.iterdir()) == sorted(
        ["store", "store.lock", path.resolve().name]
    )


def test_a_reference_to_a_store_that_is_gone_is_an_error(engine, path):
    reference = referred(engine.publish())
    _references._open.cache_clear()  # as in another client
    engine.end()
    Engine(path)
    with pytest.raises(FileNotFoundError):
        vllm.read(reference)


def test_a_file_of_another_model_is_refused_and_leaves_nothing_behind(engine, path):
    settings = {"block_rows": SIZE, "key_bytes": 32, "budget_bytes": 1 << 20}
    elsewhere = path.with_name("elsewhere")
    with routecap.Capturer(rows=64, layers=2, k=4, experts=64) as other:
        with pytest.raises(routecap.Error, match="layers"):
            _store_file.make(str(path), other, **settings)
        with pytest.raises(routecap.Error):
            _store_file.make(str(elsewhere), other, **settings | {"budget_bytes": 10})
    assert [each.name for each in path.parent.glob("elsewhere*")] == ["elsewhere.lock"]
    assert engine.publish().part().complete
