"""routecap.deepep with torch and two processes, on a stand-in for DeepEP v2's dispatch. Both
processes know what both sent, so that the stand-in needs no collective: the all-reduce is the
check's own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import routecap
import routecap.deepep
import torch
import torch.distributed
import torch.multiprocessing
from routecap.deepep import Dispatch, check

RANKS, EXPERTS, K = 2, 16, 4
TOKENS = 5, 8  # of each rank
LOCAL = EXPERTS // RANKS


class EPHandle:
    """Of the name, the module and the attributes of DeepEP's."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


EPHandle.__module__ = "deep_ep.buffers.elastic"


def choose(layer: int = 0) -> list[torch.Tensor]:
    """Ids of each rank's tokens, distinct in a token."""
    random = torch.Generator().manual_seed(layer)
    return [torch.rand(n, EXPERTS, generator=random).topk(K).indices for n in TOKENS]


def dispatch(
    sent: list[torch.Tensor], rank: int, expand: bool = False, sync: bool = False, m: int = 8
) -> tuple[EPHandle, torch.Tensor | None]:
    """What this rank has afterwards: the handle, and recv_topk_idx."""
    random = torch.Generator().manual_seed(rank)
    rows, psum = [], []
    for source, ids in enumerate(sent):
        here = ((ids >= 0) & (ids // LOCAL == rank)).any(1).nonzero()[:, 0]
        rows += [(source, t) for t in here[torch.randperm(len(here), generator=random)].tolist()]
        psum.append(len(rows))
    size = len(rows) if sync else RANKS * m
    metadata = torch.randint(0, RANKS * m, (size, 2 + K), generator=random).int()
    received = torch.randint(-1, LOCAL, (size, K), generator=random)
    counts = torch.zeros(LOCAL, dtype=torch.int64)
    for source, t in rows:
        for id in sent[source][t].tolist():
            if id >= 0 and id // LOCAL == rank:
                counts[id % LOCAL] += 1
    alignment = 4
    aligned = (counts + alignment - 1) // alignment * alignment
    cursor = aligned.cumsum(0) - aligned
    for row, (source, t) in enumerate(rows):
        metadata[row, 0] = source * m + t
        for c, id in enumerate(sent[source][t].tolist()):
            here = id >= 0 and id // LOCAL == rank
            received[row, c] = id % LOCAL if here else -1
            metadata[row, 2 + c] = cursor[id % LOCAL] if here else -1
            cursor[id % LOCAL] += here
    handle = EPHandle(
        do_expand=expand,
        num_experts=EXPERTS,
        expert_alignment=alignment,
        num_max_tokens_per_rank=m,
        num_expanded_tokens=int(aligned.sum()),
        psum_num_recv_tokens_per_scaleup_rank=torch.tensor(psum, dtype=torch.int32),
        psum_num_recv_tokens_per_expert=(cursor if expand else aligned.cumsum(0)).int(),
        recv_src_metadata=metadata,
    )
    return handle, None if expand else received


# ---- In two processes

Case = Callable[[int], list[Dispatch]]
CASES: dict[str, Case] = {}


def case(work: Case) -> Case:
    CASES[work.__name__] = work
    return work


def changed(change: Callable[[torch.Tensor], None]) -> Case:
    """One dispatch of each layout, in which rank 1's tokens were changed on their way."""

    def work(rank: int) -> list[Dispatch]:
        chosen, sent = choose(), choose()
        change(sent[1])
        dispatches = []
        for expand in False, True:
            handle, ids = dispatch(sent, rank, expand, sync=expand)
            dispatches.append(Dispatch(handle, chosen[rank], ids))
        return dispatches

    return work


def replace(sent: torch.Tensor) -> None:
    sent[2, 1] = next(e for e in range(EXPERTS) if e not in sent[2].tolist())


def lose_expert(sent: torch.Tensor) -> None:
    sent[2, 1] = -1


def lose_token(sent: torch.Tensor) -> None:
    sent[2] = -1


def swap(sent: torch.Tensor) -> None:
    sent[2] = sent[2].flip(0)


CASES |= {each.__name__: changed(each) for each in (replace, lose_expert, lose_token, swap)}


@case
def right(rank: int) -> list[Dispatch]:
    """Layers and micro-batches of several sizes and both layouts, with 32-bit ids too."""
    dispatches = []
    for layer, (expand, sync, m) in enumerate(
        [
            (False, False, 8),
            (False, True, 8),
            (True, True, 64),
            (True, False, 16),
            (False, False, 16),
        ]
    ):
        chosen = choose(layer)
        handle, ids = dispatch(chosen, rank, expand, sync, m)
        dispatches.append(Dispatch(handle, chosen[rank].int(), ids if ids is None else ids.int()))
    return dispatches


@case
def one_layer_of_three(rank: int) -> list[Dispatch]:
    dispatches = []
    for layer in range(3):
        chosen, sent = choose(layer), choose(layer)
        if layer == 1:
            swap(sent[0])
        handle, ids = dispatch(sent, rank)
        dispatches.append(Dispatch(handle, chosen[rank], ids))
    return dispatches


@case
def larger_tokens_per_rank(rank: int) -> list[Dispatch]:
    chosen = choose()
    handle, ids = dispatch(chosen, rank)
    handle.num_max_tokens_per_rank = 32
    return [Dispatch(handle, chosen[rank], ids)]


@case
def the_step_before(rank: int) -> list[Dispatch]:
    handle, ids = dispatch(choose(1), rank)
    return [Dispatch(handle, choose(2)[rank], ids)]


def in_place(rank: int, masked: bool) -> list[Dispatch]:
    """The ids as vLLM's class makes them for its experts."""
    chosen = choose()
    handle, ids = dispatch(chosen, rank)
    assert ids is not None
    live = torch.arange(len(ids))[:, None] < handle.psum_num_recv_tokens_per_scaleup_rank[-1]
    keep = (ids >= 0) & live if masked else ids >= 0
    return [Dispatch(handle, chosen[rank], torch.where(keep, ids + rank * LOCAL, -1), True)]


@case
def global_ids(rank: int) -> list[Dispatch]:
    return in_place(rank, True)


@case
def global_ids_with_a_tail(rank: int) -> list[Dispatch]:
    return in_place(rank, False)


@case
def global_ids_that_nobody_told_of(rank: int) -> list[Dispatch]:
    return [in_place(rank, True)[0]._replace(global_ids=False)]


def run(rank: int, folder: str) -> None:
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    reduced = 0
    all_reduce = torch.distributed.all_reduce

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal reduced
        reduced += 1
        return all_reduce(*arguments, **options)

    torch.distributed.all_reduce = counted
    found = {name: check(work(rank)).read() for name, work in CASES.items()}
    assert reduced == len(CASES), "a step takes one all-reduce"
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[list[routecap.deepep.Counts]]]:
    """By case: of each rank the counts of its dispatches."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(run, (str(folder),), nprocs=RANKS)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {
        name: [[routecap.deepep.Counts(*counts) for counts in rank[name]] for rank in ranks]
        for name in CASES
    }


Found = dict[str, list[list[routecap.deepep.Counts]]]


@pytest.mark.parametrize("name", ["right", "global_ids"])
def test_a_right_dispatch_is_equal_in_every_column(found: Found, name: str) -> None:
    for rank, dispatches in enumerate(found[name]):
        for counts in dispatches:
            assert counts == (TOKENS[rank], TOKENS[rank] * K, TOKENS[rank] * K, 0, 0, 0, 0, 0, 0)
            assert counts.right


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("replace", {"replaced": 1}),
        ("lose_expert", {"lost": 1}),
        ("lose_token", {"lost": K, "tokens_lost": 1}),
        ("swap", {"swapped": K}),
    ],
)
def test_what_ran_otherwise_is_found_on_the_rank_of_the_token(
    found: Found, name: str, expected: dict[str, int]
) -> None:
    first, second = found[name]
    assert all(counts.right for counts in first) and len(second) == 2
    for counts in second:
        off = sum(expected.values()) - expected.get("tokens_lost", 0)
        want = {"tokens": 8, "columns": 8 * K, "equal": 8 * K - off, **expected}
        assert {name: n for name, n in counts._asdict().items() if n} == want
        assert not counts.right


def test_of_several_layers_the_wrong_one_is_named(found: Found) -> None:
    first, second = found["one_layer_of_three"]
    assert [counts.right for counts in first] == [True, False, True]
    assert all(counts.right for counts in second)


# With a larger tokens_per_rank, most columns were wrong and nothing was counted.
def test_tokens_per_rank_of_a_larger_step_is_found(found: Found) -> None:
    [[first], [second]] = found["larger_tokens_per_rank"]
    assert first.ignored + second.ignored == sum(TOKENS) * K
    assert first.tokens_lost == TOKENS[0] and second.tokens_lost == TOKENS[1]


@pytest.mark.parametrize("name", ["the_step_before", "global_ids_that_nobody_told_of"])
def test_tensors_of_another_step_or_meaning_are_found(found: Found, name: str) -> None:
    assert not all(counts.right for rank in found[name] for counts in rank)


def test_an_unmasked_tail_is_found(found: Found) -> None:
    [[first], [second]] = found["global_ids_with_a_tail"]
    assert first.equal == first.columns and second.equal == second.columns
    assert first.ignored + second.ignored > 0


# ---- What is refused, in one process


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("alone") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class OfTwoFive:
    """DeepEP 2.5's."""


OfTwoFive.__module__, OfTwoFive.__qualname__ = "deep_ep.buffers.ep", "EPHandle"


def without(name: str) -> EPHandle:
    handle, _ = dispatch(choose(), 0)
    del handle.__dict__[name]
    return handle


@pytest.mark.parametrize(
    ("handle", "words"),
    [
        (OfTwoFive(), "DeepEP 2.5's deep_ep.buffers.ep.EPHandle"),
        (object(), "a builtins.object: routecap.deepep knows deep_ep.buffers.elastic.EPHandle"),
        (without("recv_src_metadata"), "EPHandle has no recv_src_metadata.*dd758ca"),
        (without("psum_num_recv_tokens_per_scaleup_rank"), "no psum_num_recv_tokens_per_scaleup"),
    ],
)
def test_a_handle_that_is_not_known_is_refused_by_name(handle: Any, words: str) -> None:
    _, ids = dispatch(choose(), 0)
    with pytest.raises(ValueError, match=words):
        check([Dispatch(handle, choose()[0], ids)])


@pytest.mark.parametrize(
    ("expand", "changes", "words"),
    [
        (False, {"recv_topk_idx": None}, "recv_topk_idx is None"),
        (False, {"topk_ids": choose()[0][:, :2].contiguous()}, "topk_ids has 2 columns, 4 were"),
        (False, {"recv_topk_idx": torch.zeros(16, K, dtype=torch.int16)}, "I16, not I32 or I64"),
        (True, {"recv_topk_idx": torch.zeros(16, K)}, "leave recv_topk_idx and global_ids out"),
        (True, {"global_ids": True}, "leave recv_topk_idx and global_ids out"),
    ],
)
def test_tensors_that_the_layout_does_not_have_are_refused(
    expand: bool, changes: dict[str, Any], words: str
) -> None:
    handle, ids = dispatch(choose(), 0, expand)
    with pytest.raises(routecap.Error, match=words):
        check([Dispatch(handle, choose()[0], ids)._replace(**changes)])


def test_a_step_without_dispatches_is_refused() -> None:
    with pytest.raises(ValueError, match="no dispatches"):
        check([])
