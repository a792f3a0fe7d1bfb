"""Weights beside the ids: bit for bit what the routers gave, or refused by name."""

import base64
import json

import numpy as np
import pytest
import released
import routecap
import routecap.remote
import torch
from engine import EXPERTS, LAYERS, ROUTED, VOCABULARY, K, Request, choose, right, weigh
from routecap_sglang import _checkpoints, _hooks, _versions
from routecap_sglang._options import Options
from routecap_sglang._routed import FUNCTION, around_ids

TARGET = f"sglang.srt.{FUNCTION}"
WITH = {"weights": True, "budget_bytes": 64 << 20}
draw = np.random.default_rng(9)


def request(n, most=3, kind="routecap", **fields):
    tokens = n if isinstance(n, list) else draw.integers(0, VOCABULARY, n).tolist()
    return Request(tokens, most=most, parameters={"routed_experts_dtype": kind}, **fields)


def routing_of(engine, request):
    return routecap.Routing.deserialize(base64.b64decode(engine.answer(request)))


def expect(routing, rows):
    """It has these rows, each id with its weight."""
    assert routing.complete and routing.coverage().cells_weighted == rows[..., 0].size
    assert (routing.ids() == rows).all()
    assert routing.weights_dtype is routecap.Dtype.F32
    assert (routing.weights().view(np.uint32) == weigh(rows).view(np.uint32)).all()


def test_each_id_has_the_weight_that_its_router_gave_in_a_batch_with_padding_and_chunks(start):
    engine = start(Options(**WITH))
    requests = [request(n, most=n % 7 + 1) for n in (1, 15, 16, 17, 40)]
    engine.generate(requests)
    for each in requests:
        expect(routing_of(engine, each), right(each))


def test_without_the_option_nothing_is_hooked_and_rows_have_no_weights(start):
    plain = _versions.find("0.5.23", Options()).design
    assert plain == _checkpoints.design("0.5.23", (0, 5, 23))
    assert TARGET not in plain.functions
    engine = start()
    assert engine.model.around is None
    asked = request(5)
    engine.generate([asked])
    assert routing_of(engine, asked).weights_dtype is None


@pytest.mark.parametrize("page_size", (1, 16))
def test_rows_of_a_cached_prefix_have_the_weights_of_who_computed_it(start, page_size):
    engine = start(Options(**WITH), page_size=page_size)
    first = request(40)
    engine.generate([first])
    second = request([*first.tokens[:36], 1, 2])
    assert engine.generate([second]) == [36 // page_size * page_size]
    expect(routing_of(engine, second), right(second))


def test_routers_that_overwrite_their_weights_are_recorded_where_they_are(start):
    engine = start(Options(**WITH))
    engine.model.overwrites = True
    asked = request(20)
    engine.generate([asked])
    expect(routing_of(engine, asked), right(asked))


def test_answers_of_ids_alone_stay_as_they_are(start):
    answers = []
    for options in (Options(), Options(**WITH)):
        engine = start(options)
        asked = [request([1, 2, 3, 4, 5], 2, kind) for kind in ("int32", "int16", "uint8")]
        for each in asked:
            each.output_ids.extend([7, 8])
            engine.prefill(each)
            engine.finish(each)
        answers.append([engine.answer(each) for each in asked])
    assert answers[0] == answers[1]
    ids = np.frombuffer(base64.b64decode(answers[1][0]), np.int32).reshape(-1, LAYERS, K)
    assert (ids[:, ROUTED] == choose([1, 2, 3, 4, 5, 7, 8])[:-1]).all()
    assert "weights" not in json.loads(answers[1][2])


def test_files_in_the_folder_have_weights(start, tmp_path):
    engine = start(Options(folder=str(tmp_path), **WITH))
    asked = request(9)
    engine.generate([asked])
    engine.close()
    saved = routecap.load(tmp_path / f"{asked.rid}.routecap")[asked.rid].routing
    expect(saved, right(asked))


def test_rows_that_a_reference_names_have_weights(start, tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTECAP_SGLANG_OBJECTS", str(tmp_path))
    engine = start(Options(**WITH))
    asked = request(9, kind="reference")
    engine.generate([asked])
    shape = {"layers": len(ROUTED), "k": K, "experts": EXPERTS, "layer_map": ROUTED}
    store = routecap.remote.connect(str(tmp_path))
    reader = routecap.remote.Reader(store, weights="float32", **shape)
    rows = reader.rows(json.loads(engine.answer(asked)))
    expect(rows.read(0, len(right(asked))), right(asked))


@pytest.mark.parametrize("in_graph", (False, True))
def test_under_data_parallel_attention_a_rank_has_the_weights_of_its_own_slice(
    start, ranks, in_graph
):
    ranks.num_dp_ranks, ranks.dp_rank = 2, 1
    engine = start(Options(**WITH))
    asked = request(6)
    rows = choose(asked.tokens)
    engine.run_rows("prefill", [asked], [0], [6], rows, before=4)
    for _ in range(3):
        asked.output_ids.append(3)
        first, row = len(asked.tokens) - 1, choose(asked.tokens)[-1:]
        engine.run_rows("decode", [asked], [first], [1], row, before=4, in_graph=in_graph)
    asked.output_ids.append(4)
    engine.finish(asked)
    expect(routing_of(engine, asked), right(asked))


def test_weights_that_an_attention_group_scatters_are_gathered(start, ranks, monkeypatch):
    ranks.scattered, ranks.attn_tp_size = True, 2
    engine = start(Options(**WITH), padding=0)
    asked = request(8)
    rows, parts = choose(asked.tokens), {}

    def gather(whole, part):
        whole.copy_(torch.cat(parts[part.dtype]))

    monkeypatch.setattr(
        "sglang.srt.layers.dp_attention.attn_tp_all_gather_into_tensor", gather, raising=True
    )

    def forward(input_ids, positions, forward_batch, **more):
        for i, layer in enumerate(ROUTED):
            ids = torch.from_numpy(rows[:, i].copy())
            weights = torch.from_numpy(weigh(ids))
            parts.update({each.dtype: [each[:4], each[4:]] for each in (ids, weights)})
            engine.model.give(layer_id=layer, topk_ids=ids[:4], topk_weights=weights[:4])

    engine.model.forward = engine.capturer._forward.around(forward, engine.capturer.softly)
    engine.run_rows("prefill", [asked], [0], [8], rows)
    asked.output_ids.append(4)
    engine.finish(asked)
    expect(routing_of(engine, asked), right(asked))


def given(start, change, fused=0):
    """A request of 6 tokens, of which each router gives what `change` makes of ids and weights."""
    engine = start(Options(**WITH), padding=0)
    engine.capturer._forward._widths = [(K, K + fused)] * len(ROUTED)
    asked = request(6)
    rows = choose(asked.tokens)

    def forward(input_ids, positions, forward_batch, **more):
        for i, layer in enumerate(ROUTED):
            ids = torch.from_numpy(rows[:, i].copy())
            ids, weights = change(ids, torch.from_numpy(weigh(ids)))
            engine.model.give(layer_id=layer, topk_ids=ids, topk_weights=weights)

    engine.model.forward = engine.capturer._forward.around(forward, engine.capturer.softly)
    engine.run_rows("prefill", [asked], [0], [6], rows)
    asked.output_ids.append(4)
    engine.finish(asked)
    return engine, asked


def with_shared(tensor, value):
    return torch.cat([tensor, torch.full((len(tensor), 1), value, dtype=tensor.dtype)], 1)


@pytest.mark.parametrize("ids_too", (True, False))
def test_the_weights_of_shared_experts_behind_the_chosen_ones_are_left_out(start, ids_too):
    def change(ids, weights):
        return with_shared(ids, 39) if ids_too else ids, with_shared(weights, 0.5)

    engine, asked = given(start, change, fused=1)
    expect(routing_of(engine, asked), right(asked))


@pytest.mark.parametrize("kind", (torch.bfloat16, torch.float16))
def test_narrower_weights_are_widened_and_keep_their_value(start, kind):
    engine, asked = given(start, lambda ids, weights: (ids, weights.to(kind)))
    got, rows = routing_of(engine, asked), right(asked)
    assert (got.ids() == rows).all()
    assert (got.weights() == torch.from_numpy(weigh(rows)).to(kind).float().numpy()).all()


# A rank without requests runs its routers too: the address of no weights is none, and was taken for
# weights that are not there.
def test_a_pass_without_rows_has_no_weights_and_does_not_end_capture(start):
    engine = start(Options(**WITH))
    capturer, ids = engine.capturer, torch.zeros(0, K, dtype=torch.int32)
    capturer._forward.begin(0)
    for layer in ROUTED:
        engine.model.give(layer_id=layer, topk_ids=ids, topk_weights=ids.float())
    capturer._forward.end()
    assert not capturer.failed
    asked = request(5)
    engine.generate([asked])
    expect(routing_of(engine, asked), right(asked))


REFUSED = {
    "weights of torch.float64": lambda ids, weights: (ids, weights.double()),
    f"weights of shape (5, {K})": lambda ids, weights: (ids, weights[1:]),
    f"weights of shape (6, {K - 1})": lambda ids, weights: (ids, weights[:, 1:]),
    f"weights of shape ({6 * K},)": lambda ids, weights: (ids, weights.flatten()),
    "nothing has its topk_weights": lambda ids, weights: (ids, None),
}


@pytest.mark.parametrize("said", REFUSED)
def test_weights_that_are_not_those_of_the_ids_are_refused_by_name(start, caplog, said):
    engine, asked = given(start, REFUSED[said])
    assert engine.capturer.failed and asked.routed_experts is None
    assert said in caplog.text and "the router of layer 0 gave" in caplog.text


def test_a_router_that_gives_its_ids_elsewhere_is_refused_by_name(start, caplog):
    """Some models take the place of the function, and compute their weights behind that."""
    engine = start(Options(**WITH))
    engine.model.around = None
    asked = request(6)
    engine.generate([asked])
    assert engine.capturer.failed and asked.routed_experts is None
    assert f"layer 0 gave ids outside of SGLang's {FUNCTION}" in caplog.text


def test_weights_of_one_router_are_not_those_of_the_next(start, caplog):
    engine = start(Options(**WITH))
    capturer, ids = engine.capturer, torch.zeros(4, K, dtype=torch.int32)
    capturer._forward.begin(4)
    with pytest.raises(RuntimeError, match="on purpose"):

        def fail(**given):
            raise RuntimeError("on purpose")

        around_ids(fail, topk_ids=ids, topk_weights=ids.float())
    capturer.capture(0, ids)
    assert capturer.failed and "gave ids outside" in caplog.text


@pytest.mark.parametrize("wanted", (True, False))
@pytest.mark.parametrize("renamed", (FUNCTION.rpartition(".")[2], "topk_ids", "topk_weights"))
def test_where_sglang_renamed_what_has_weights_it_is_named_and_sglangs_own_captures(
    start, ranks, monkeypatch, caplog, renamed, wanted
):
    """If they are wanted; else nothing reads it."""
    assert released.put(monkeypatch, TARGET, **{renamed: "renamed"})
    engine = start(Options(weights=wanted), own="own")
    assert (engine.capturer == "own") is (_hooks._capturer is None) is wanted
    for each in (TARGET, renamed, "SGLang's own does"):
        assert (each in caplog.text) is wanted


def test_where_pytorch_copies_they_are_refused_by_name(start, monkeypatch, caplog):
    monkeypatch.setenv("ROUTECAP_WITHOUT_KERNELS", "1")
    assert start(Options(**WITH), own="own").capturer == "own"
    assert "weights cannot be set here" in caplog.text


@pytest.mark.parametrize(
    "number", ("0.5.10.post1", "0.5.11", "0.5.12.post1", "0.5.13", "0.5.21", "0.5.22", "0.5.23")
)
def test_every_release_is_hooked_where_routers_give_their_ids(number):
    found = _versions.find(number, Options(weights=True)).design
    plain = _versions.find(number, Options()).design
    [hook] = [each for each in found.hooks if each not in plain.hooks]
    assert found.functions[TARGET] == ("topk_ids", "topk_weights")
    assert found._replace(hooks=plain.hooks) == plain and hook.kind == "around"


def test_an_unchecked_release_must_have_it_too(monkeypatch):
    def misfits(functions, fields):
        return [f"there must be {name}" for name in functions if name == TARGET]

    monkeypatch.setattr(_versions, "misfits", misfits)
    assert f"there must be {TARGET}" in _versions.find("0.6.0", Options(weights=True)).why
    assert "All that is hooked fits" in _versions.find("0.6.0", Options()).why


def test_a_variable_of_the_environment_asks_for_them():
    assert Options.from_environment({"ROUTECAP_SGLANG_WEIGHTS": "1"}).weights
    assert not Options.from_environment({}).weights
    written = {}
    Options(weights=True).to_environment(written)
    assert written["ROUTECAP_SGLANG_WEIGHTS"] == "1"


def test_a_compiled_model_gives_them_to_the_op(start):
    engine = start(Options(**WITH), padding=0)
    asked, rows = request(4), choose([1, 2, 3, 4])
    chosen = [torch.from_numpy(rows[:, i].copy()) for i in range(len(ROUTED))]

    @torch.compile(backend="eager", fullgraph=True)
    def region(x):
        for i, layer in enumerate(ROUTED):
            ids = chosen[i] + 0
            weights = 1 / (ids.float() + 3)
            engine.model.give(layer_id=layer, topk_ids=ids, topk_weights=weights)
        return x * 2

    engine.model.forward = engine.capturer._forward.around(
        lambda input_ids, positions, batch: region(torch.ones(1)), engine.capturer.softly
    )
    engine.run_rows("prefill", [asked], [0], [4], rows)
    engine.finish(asked)
    expect(routing_of(engine, asked), rows[:-1])
