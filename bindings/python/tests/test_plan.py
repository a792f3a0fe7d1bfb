"""Plans: against layouts of slime, verl, SkyRL and Megatron-Core (tests/plan/golden), and readers
that read what a rank needs.
"""

import json
import re
import subprocess
import sys
import tarfile
import threading
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray
from routecap import PlanClass, Routing

GOLDEN = Path(__file__).parents[3] / "tests" / "plan" / "golden" / "layouts.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text())


def ids_of(sample: int, rows: int, layers: int, k: int, experts: int) -> NDArray[np.uint8]:
    row, layer, column = np.ogrid[:rows, :layers, :k]
    return ((977 * sample + 31 * row + 7 * layer + column) % experts).astype(np.uint8)


def routing_of(sample: int, rows: int, layers: int = 5, k: int = 2, experts: int = 256) -> Routing:
    return Routing.from_arrays(ids_of(sample, rows, layers, k, experts), experts=experts)


def plan_of(
    case: dict[str, Any], context_rank: int, tensor_rank: int, **more: Any
) -> routecap.Plan:
    names = ("layout", "context", "context_size", "tensor_size", "sequence_parallel", "sequence_first", "align", "align_total", "least_total",
             "align_rank", "width")  # fmt: skip
    given = {name: case[name] for name in names if name in case}
    return routecap.Plan(
        case["lengths"],
        layers=[1, 2, 4],
        k=2,
        experts=256,
        context_rank=context_rank,
        tensor_rank=tensor_rank,
        **given,
        **more,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['by']}-{case['context']}")
def test_ids_and_tokens_go_where_the_trainer_puts_them(case: dict[str, Any]) -> None:
    lengths = case["lengths"]
    first = np.concatenate([[0], np.cumsum(lengths)])
    tokens = [np.arange(n) + first[i] for i, n in enumerate(lengths)]
    routings = [routing_of(i, n - 1) for i, n in enumerate(lengths)]
    whole = np.concatenate([ids_of(i, n, 5, 2, 256) for i, n in enumerate(lengths)])[:, [1, 2, 4]]
    last = set(first[1:] - 1)
    ranks = iter(case["ranks"])
    for context_rank in range(case["context_size"]):
        for tensor_rank in range(case["tensor_size"] if case["sequence_parallel"] else 1):
            rows = np.array(next(ranks), int)
            plan = plan_of(case, context_rank, tensor_rank)
            ids, classes, report = plan.gather(routings)
            assert ids.shape == (3, rows.size, 2) and ids.dtype == np.int64
            valid = rows >= 0
            assert ((classes == PlanClass.VALID) == valid).all()
            assert (ids[:, valid] == whole[rows[valid]].transpose(1, 0, 2)).all()
            assert report.rows_valid == valid.sum() and report.cells_lost == 0
            sent = plan.gather_values(tokens, fill=-1)
            assert (sent[valid] == rows[valid]).all()
            assert set(sent[~valid]) <= last | {-1}
            assert {tuple(r) for r in plan.ranges.tolist()} == set(spans_of(rows[valid], first))


GATHERS: list[dict[str, Any]] = json.loads(GOLDEN.with_name("gathers.json").read_text())


@pytest.mark.parametrize(
    "case", GATHERS, ids=lambda case: f"{case['layout']}-{case['context']}-{case['k']}"
)
def test_every_cell_is_what_the_model_says(case: dict[str, Any]) -> None:
    """Also where rows are lost, or filled."""
    routings = []
    for sample, bits in enumerate(case["valid"]):
        row, layer, column = np.ogrid[: len(bits), :5, : case["k"]]
        ids = (977 * sample + 31 * row + 7 * layer + column) % case["experts"]
        valid = (np.array(bits, int)[:, None] >> np.arange(5) & 1).astype(bool)
        routings.append(Routing.from_arrays(ids, experts=case["experts"], valid=valid))
    names = ("layers", "k", "experts", "expert_parallel", "needed", "layout", "context", "context_size", "tensor_size", "sequence_parallel",
             "align", "order", "lost")  # fmt: skip
    given = {name: case[name] for name in names} | {
        "fill": "balanced" if case["fill"] is None else case["fill"]
    }
    ranks = iter(case["ranks"])
    for context_rank in range(case["context_size"]):
        for tensor_rank in range(case["tensor_size"] if case["sequence_parallel"] else 1):
            expected = next(ranks)
            plan = routecap.Plan(
                case["lengths"], context_rank=context_rank, tensor_rank=tensor_rank, **given
            )
            ids, classes, report = plan.gather(routings)
            assert ids.ravel().tolist() == expected["ids"]
            assert classes.ravel().tolist() == expected["classes"]
            assert report.cells_lost == expected["cells_lost"]


def spans_of(numbers: NDArray[Any], first: NDArray[Any]) -> list[tuple[int, int, int]]:
    """Tokens as ranges of samples."""
    found: list[tuple[int, int, int]] = []
    for number in sorted(numbers.tolist()):
        sample = int(np.searchsorted(first, number, "right") - 1)
        at = number - int(first[sample])
        if found and found[-1][0] == sample and found[-1][1] + found[-1][2] == at:
            found[-1] = (sample, found[-1][1], found[-1][2] + 1)
        else:
            found.append((sample, at, 1))
    return found


SETTINGS: dict[str, Any] = {
    "layers": [0, 3],
    "k": 2,
    "experts": 256,
    "context": "zigzag",
    "context_size": 2,
}


@pytest.mark.parametrize("order", ["row_major", "layer_major"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_every_type_and_order_has_the_same_ids(dtype: Any, order: Any) -> None:
    routings = [routing_of(0, 10), routing_of(1, 6)]
    plain = routecap.Plan([11, 7], **SETTINGS, context_rank=1, lost="error").gather(routings)
    plan = routecap.Plan(
        [11, 7], **SETTINGS, context_rank=1, dtype=dtype, order=order, lost="error"
    )
    out, classes = np.full(plan.shape, 77, dtype), np.full(plan.shape[:2], 77, np.uint8)
    gathered = plan.gather(routings, out=out, classes=classes)
    assert gathered.ids is out and gathered.classes is classes
    if order == "row_major":
        out, classes = out.transpose(1, 0, 2), classes.T
    assert (out == plain.ids).all() and (classes == plain.classes).all()


def test_what_no_source_has_is_marked_and_never_looks_like_an_expert() -> None:
    valid = np.ones((10, 5), bool)
    valid[3, 3] = valid[6] = False
    holes = Routing.from_arrays(ids_of(0, 10, 5, 2, 256), experts=256, valid=valid)
    plan = routecap.Plan([11, 7], layers=[0, 3], k=2, experts=256)
    ids, classes, report = plan.gather({0: holes})
    lost = classes == PlanClass.LOST
    assert (ids[lost] == -1).all() and (ids[~lost] >= 0).all()
    assert (
        lost[:, 6].all()
        and lost[1, 3]
        and not lost[0, 3]
        and lost[:, 11:17].all()
        and lost.sum() == 15
    )
    assert (report.rows_lost, report.rows_partial, report.cells_lost, report.rows_not_needed) == (
        7,
        1,
        15,
        2,
    )
    other = routecap.Plan([11, 7], layers=[0, 3], k=2, experts=256, lost="balanced").gather(
        {0: holes}
    )
    assert (
        (other.ids >= 0).all()
        and (other.classes == classes).all()
        and (other.ids[~lost] == ids[~lost]).all()
    )
    with pytest.raises(routecap.Error) as strict:
        routecap.Plan([11, 7], layers=[0, 3], k=2, experts=256, lost="error").gather({0: holes})
    assert strict.value.status == routecap.Status.ERR_INCOMPLETE


def test_what_is_recorded_goes_back_to_its_samples() -> None:
    lengths = [11, 7, 20]
    routings = [routing_of(i, n - 1) for i, n in enumerate(lengths)]
    back: list[list[Routing]] = [[] for _ in lengths]
    for rank in range(2):
        plan = routecap.Plan(lengths, **SETTINGS, context_rank=rank)
        ids, classes, _ = plan.gather(routings)
        for sample, each in enumerate(plan.scatter(ids, classes)):
            back[sample].append(each)
    for sample, parts in enumerate(back):
        whole = routecap.merge(parts)
        assert whole.layer_map.tolist() == [0, 3]
        rows = lengths[sample] - 1
        assert (whole.ids(np.int64)[:rows] == ids_of(sample, rows, 5, 2, 256)[:, [0, 3]]).all()
        assert (whole.ids(np.int64)[rows] == -1).all()


def test_needed_rows_are_those_before_the_last_loss() -> None:
    assert routecap.needed_rows([0, 0, 1, 1, 0, 0]) == 3
    assert routecap.needed_rows([0, 0, 0]) == 0 and routecap.needed_rows([]) == 0
    plan = routecap.Plan([6], layers=1, k=2, experts=8, needed=[3])
    assert plan.ranges.tolist() == [(0, 0, 3)] and plan.rows_needed == 3
    assert plan.gather([routing_of(0, 6, 1, 2, 8)]).classes.tolist() == [[0, 0, 0, 2, 2, 2]]


def test_a_plan_says_what_it_is() -> None:
    plan = routecap.Plan(cu_lengths=[0, 3, 9], layers=3, k=2, experts=8, align=4, order="row_major")
    assert (plan.samples, plan.rows, plan.total_rows, plan.shape, plan.width) == (
        2,
        12,
        12,
        (12, 3, 2),
        0,
    )
    assert "12 of 12 rows of 2 samples" in repr(plan)
    padded = routecap.Plan(
        [3, 6], layers=1, k=2, experts=8, layout="padded_left", starts=[1, 0], sequence_first=True
    )
    assert padded.width == 6 and padded.gather_values(
        [[1, 2, 3], [4, 5, 6, 7, 8, 9]], fill=-1
    ).tolist() == [-1, 4, 1, 5, 2, 6, 3, 7, -1, 8, -1, 9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lengths": [3], "needed": [1, 2]}, "equally many samples"),
        ({"lengths": [-1]}, "sequence of integers"),
        ({"lengths": [3], "context": "spiral"}, "'zigzag'"),
        ({"lengths": [3], **SETTINGS, "context_rank": 1, "align": 1}, "not a multiple of 4"),
        (
            {"lengths": [3], **SETTINGS},
            "context_size is 2 and config.context_rank is not set: set which of these ranks",
        ),
        (
            {"lengths": [3], "sequence_parallel": True, "tensor_size": 4},
            "tensor_size is 4 and config.tensor_rank is not set",
        ),
        (
            {"lengths": [3], "lost": "drop"},
            "lost is 'drop': give 'balanced' or 'error', or a number",
        ),
        ({"lengths": [3], "fill": "even"}, "fill is 'even': give 'balanced', or a number"),
        ({"lengths": [3], "layer_experts": [8, 8]}, "2 elements for 1 layers"),
        ({"lengths": [3], "dtype": "uint8", "lost": 300}, "lost_value 300 does not fit"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], words: str) -> None:
    settings: dict[str, Any] = {"layers": 1, "k": 2, "experts": 8} | change
    with pytest.raises(routecap.Error, match=words):
        routecap.Plan(**settings).gather([None], classes=np.empty((1, 4), np.uint8))


def test_memory_of_another_shape_is_refused() -> None:
    plan = routecap.Plan([3], layers=1, k=2, experts=8)
    wrong: list[dict[str, Any]] = [
        {"out": np.empty((1, 3, 1), np.int64)},
        {"out": np.empty((1, 3, 2), np.int32)},
        {"out": np.empty((2, 3, 2), np.int64)[::2]},
        {"out": np.empty((1, 3, 4), np.int64)[..., ::2]},
        {"classes": np.empty((3, 1), np.uint8)},
        {"classes": np.empty((1, 3), np.int8)},
        {"out": np.frombuffer(bytes(48), np.int64).reshape(1, 3, 2)},
    ]
    for each in wrong[:2] + wrong[3:]:
        with pytest.raises(routecap.Error):
            plan.gather([None], **each)
    plan.gather([None], **wrong[2])  # a view without gaps
    with pytest.raises(routecap.Error, match="one for each token"):
        plan.gather_values([[1, 2]])


def test_any_number_of_threads_use_one_plan() -> None:
    plan = routecap.Plan([300] * 4, layers=5, k=2, experts=256, align=64)
    routings = [routing_of(i, 299) for i in range(4)]
    expected = plan.gather(routings).ids
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            if not (plan.gather(routings).ids == expected).all():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- By way of what is uploaded -------------------------------------------------------------


def test_what_is_packed_is_unpacked_as_it_is_gathered() -> None:
    plan = routecap.Plan([11, 7], **SETTINGS, context_rank=0, fill=3)
    routings: list[Any] = [routing_of(0, 10), None]
    packed = np.empty(plan.packed_bytes, np.uint8)
    report = plan.pack(routings, packed)
    expected = plan.gather(routings)
    assert report == expected.report and report.cells_lost > 0
    out, classes = np.empty(plan.shape, np.int64), np.empty(plan.shape[:2], np.uint8)
    plan.unpack(packed, out, classes=classes)
    assert (out == expected.ids).all() and (classes == expected.classes).all()
    with pytest.raises(routecap.Error) as other:
        routecap.Plan([12, 7], **SETTINGS, context_rank=0, fill=4).unpack(packed, out)
    assert other.value.status == routecap.Status.ERR_STATE


# ---- Readers --------------------------------------------------------------------------------


def damaged_outside(data: bytes, first: int, rows: int) -> bytearray:
    """A serialised routing that is wrong in all rows but those: who read it all would notice."""
    info = routecap.serialized_info(data)
    row_bytes = (len(data) - info.header_bytes) // info.rows
    broken = bytearray(data)
    for row in range(info.rows):
        if not first <= row < first + rows:
            at = info.header_bytes + row * row_bytes
            broken[at : at + row_bytes] = bytes(row_bytes)  # one id twice
    return broken


def test_a_rank_reads_the_rows_that_it_needs_and_no_others(tmp_path: Path) -> None:
    whole = routing_of(0, 39)
    plan = routecap.Plan([40], **SETTINGS, context_rank=1)
    expected = plan.gather([whole]).ids
    [(_, first, rows)] = plan.ranges.tolist()  # ranks 1 of 2 has the two chunks in the middle
    assert (first, rows) == (10, 20)
    file = tmp_path / "a.routecap"
    file.write_bytes(damaged_outside(whole.serialize(), first, rows))
    with pytest.raises(routecap.Error):
        Routing.deserialize(file.read_bytes())
    reader = routecap.stored(file)["a"]
    assert (plan.gather([reader]).ids == expected).all()
    with pytest.raises(routecap.Error):
        reader.read(9, 2)
    assert (reader.first, reader.rows) == (0, 39) and reader.read(30, 0).rows == 0
    assert reader.read(20, 3).first == 20
    assert routecap.slice_pieces(whole.serialize(), 3)[0][:8] == b"RCAPROWS"


def mapped_bytes(path: Path) -> int:
    """How much of a mapped file this process has read, in whole pages."""
    found = re.findall(
        rf"^\S+ \S+ \S+ \S+ \S+ +{re.escape(str(path))}\n.*?^Rss: +(\d+) kB$",
        Path("/proc/self/smaps").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    return sum(1024 * int(each) for each in found)


AROUND = 64 << 10
"""Linux brings so many bytes around one that is read."""


def large(path: Path, samples: int, rows: int, layers: int) -> list[int]:
    """An archive of routings of k 8; returns the tokens of each sample."""
    routings = {f"{i:02}": routing_of(i, rows - i, layers, 8) for i in range(samples)}
    routecap.save(path, routings)
    return [rows - i + 1 for i in range(samples)]


@pytest.mark.parametrize("rank", [0, 3])
def test_of_an_archive_so_many_bytes_are_read_as_a_rank_has_rows(tmp_path: Path, rank: int) -> None:
    path = tmp_path / "rollouts.tar"
    lengths = large(path, samples=3, rows=20_000, layers=48)
    files = routecap.stored(path)
    headers = mapped_bytes(path)
    assert headers <= len(files) * AROUND
    plan = routecap.Plan(
        lengths, layers=48, k=8, experts=256, context="zigzag", context_size=4, context_rank=rank
    )
    plan.gather(list(files.values()))
    own, ranges = plan.rows_needed * 392, len(plan.ranges)  # 48 * 8 ids, validity, padding
    headers += 4 * sum(lengths)  # with the checks of all rows
    assert own <= mapped_bytes(path) <= headers + own + 2 * ranges * AROUND
    assert own + 2 * ranges * AROUND < path.stat().st_size / 3  # or this would show nothing


def test_a_stage_reads_its_own_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no others, in pieces, with all that is said of their rows."""
    valid = np.random.default_rng(1).random((60, 5)) < 0.8
    valid[20:30] = False
    ids = ids_of(0, 60, 5, 2, 256)
    holes = Routing.from_arrays(
        ids, experts=256, first=3, valid=valid, tags=np.arange(60), layer_map=[1, 2, 4, 6, 7]
    )
    some = Routing.from_arrays(
        ids[:, 1:3].copy(), experts=256, first=3, valid=valid[:, 1:3],
        reasons=holes.reasons()[:, 1:3], tags=np.where(valid.any(axis=1), np.arange(60), 0),
        layer_map=[2, 4],
    )  # fmt: skip
    (tmp_path / "a.routecap").write_bytes(holes.serialize())
    reader = routecap.stored(tmp_path / "a.routecap")["a"]
    for at_once in (7 * 10, 4 << 20):  # bytes
        monkeypatch.setattr("routecap._stored._AT_ONCE", at_once)
        own = reader.of_layers([2, 4])
        assert own.read(0, 99) == some and Routing.deserialize(own.cut(0, 99)) == some
        assert own.read(10, 20) == some.slice(10, 20) and own.read(40, 0).rows == 0
        assert reader.of_layers([2, 5]).read(0, 99) == holes  # which says that 5 is not there
        plan = routecap.Plan([64], layers=[2, 4], k=2, experts=256)
        gathered, expected = plan.gather([reader]), plan.gather([holes])
        assert np.array_equal(gathered.ids, expected.ids) and gathered.report == expected.report
        assert all(each.layers == 2 for parts in plan.fetch([reader]).values() for each in parts)


OF_A_RANK = """
import resource, sys
import numpy, routecap

path, lengths, may_take, what = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
plan = routecap.Plan(lengths, **eval(sys.argv[5]), k=8, experts=256, dtype="uint8")
out, classes = numpy.ones(plan.shape, "u1"), numpy.ones(plan.shape[:2], "u1")
sources = list(routecap.stored(path).values())
with open("/proc/self/status") as status:
    [has] = [1024 * int(line.split()[1]) for line in status if line.startswith("VmData")]
resource.setrlimit(resource.RLIMIT_DATA, (has + may_take, resource.RLIM_INFINITY))
try:
    if what == "everything":
        sources = [each.read(each.first, each.rows) for each in sources]
    lost = plan.gather(sources, out=out, classes=classes).report.cells_lost
    print("gathered", lost == 0)
except MemoryError:
    print("too much")
"""


@pytest.mark.parametrize(
    ("rank", "share"),
    [
        ({"layers": 48, "context": "zigzag", "context_size": 4, "context_rank": 0}, 1 / 4),
        ({"layers": [6, 7, 8, 9, 10, 11]}, 1 / 8),
    ],
    ids=["context", "pipeline"],
)
def test_a_rank_takes_memory_for_its_own_rows_and_16_mib(
    rank: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """The system refuses more: its limit is put on a process that has its result already."""
    path = tmp_path / "rollouts.tar"
    lengths = large(path, samples=5, rows=21_000, layers=48)
    own = int(sum(lengths) * 48 * 8 * share)

    def gathers(may_take: int, what: str) -> str:
        given = [str(path), str(lengths), str(may_take), what, str(rank)]
        run = [sys.executable, "-c", OF_A_RANK, *given]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()

    assert gathers(own + (16 << 20), "its rows") == "gathered True"
    assert gathers(own // 2, "its rows") == "too much"
    assert gathers(own + (16 << 20), "everything") == "too much"


def test_files_archives_and_folders_are_read_in_place(tmp_path: Path) -> None:
    routings = {"one": routing_of(0, 10), "two": routing_of(1, 6)}
    routecap.save(tmp_path / "both.tar", routings)
    routecap.save(tmp_path / "folder/", routings)
    (tmp_path / "both.routecap").write_bytes(
        b"".join(each.serialize() for each in routings.values())
    )
    plan = routecap.Plan([11, 7], **SETTINGS, context_rank=0)
    expected = plan.gather(list(routings.values())).ids
    for name, names in (
        ("both.tar", ["one", "two"]),
        ("folder", ["one", "two"]),
        ("both.routecap", ["0", "1"]),
    ):
        found = routecap.stored(tmp_path / name)
        assert list(found) == names
        assert (plan.gather(list(found.values())).ids == expected).all()
        loaded = routecap.load(tmp_path / name)
        assert list(loaded) == names
        assert [each.routing for each in loaded.values()] == list(routings.values())
    with tarfile.open(tmp_path / "damaged.tar", "w") as archive:
        entry = tarfile.TarInfo("a.routecap")
        entry.size = 70
        archive.addfile(entry, BytesIO(bytes(70)))
    for damaged in (tmp_path / "damaged.tar", tmp_path / "empty.routecap"):
        damaged.touch()
        with pytest.raises(routecap.Error) as error:
            routecap.stored(damaged)
        assert error.value.status == routecap.Status.ERR_FORMAT
    data = (tmp_path / "both.routecap").read_bytes()
    (tmp_path / "cut.routecap").write_bytes(data[:-1])
    with pytest.raises(routecap.Error):
        routecap.stored(tmp_path / "cut.routecap")


def test_a_reader_may_begin_before_it_is_waited_for() -> None:
    calls: list[str] = []

    class Slow:
        def __init__(self, routing: Routing) -> None:
            self.routing = routing

        def begin(self, first: int, rows: int) -> Any:
            calls.append("begin")
            return lambda: (calls.append("read"), self.routing.slice(first, rows))[1]

        def read(self, first: int, rows: int) -> Routing:
            raise AssertionError("begin is there")

    routings = [routing_of(0, 10), routing_of(1, 6)]
    plan = routecap.Plan([11, 7], **SETTINGS, context_rank=0)
    gathered = plan.gather([Slow(routings[0]), [Slow(routings[1])]])
    assert (gathered.ids == plan.gather(routings).ids).all()
    assert calls == sorted(calls)
