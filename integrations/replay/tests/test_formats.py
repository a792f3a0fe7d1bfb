"""SkyRL's packed arrays and ART's binary answers: what routecap writes, the released functions
read, and the other way round.
"""

import json
import struct

import numpy as np
import pytest
import routecap
import routecap.art
import routecap.skyrl
from released import released

skyrl_rows = released("skyrl.backends.skyrl_train.utils.routed_experts")
skyrl_wire = released("skyrl.backends.skyrl_train.inference_servers.generate_wire")
skyrl_batch = released("skyrl.train.dataset.preprocess")
art = released("art.vllm_route_transport")
art_arrays = released("art.preprocessing.moe_routing")
art_trajectories = released("art.trajectories._routed_experts")

SHAPES = [(128, 8), (256, 4), (257, 4), (512, 10), (300, 1)]  # experts, k


def routing(experts, k, rows=11, layers=3, *, seed=0, below=None, **more):
    random = np.random.default_rng(seed)
    below = below or experts
    ids = np.array([random.permutation(below)[:k] for _ in range(rows * layers)])
    ids = ids.reshape(rows, layers, k)
    return ids, routecap.Routing.from_arrays(ids, experts=experts, **more)


# ---- SkyRL


@pytest.mark.parametrize(("experts", "k"), SHAPES)
def test_skyrl_takes_rows_and_their_type_as_they_are(experts, k):
    for below in (experts, k + 5, 256):
        ids, given = routing(experts, k, below=min(below, experts), seed=below)
        ours = routecap.skyrl.rows(given)
        theirs = skyrl_rows.compact_routed_expert_indices(ids)
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
        assert skyrl_rows.compact_routed_expert_indices(ours).dtype == ours.dtype
        assert np.array_equal(routecap.skyrl.read(theirs, experts=experts).ids(), ids)


@pytest.mark.parametrize(("experts", "k"), SHAPES)
def test_skyrls_server_and_client_read_and_write_the_same(experts, k):
    """Its client refuses a type that is wider than the largest id asks for, though the model has
    more experts."""
    for below in (experts, 200):
        ids, given = routing(experts, k, below=min(below, experts), seed=below)
        body = json.dumps({"choices": [{"routed_experts": routecap.skyrl.packed(given)}]})
        body = body.replace(": ", ":").encode()  # as orjson writes it
        [choice] = skyrl_wire.load_packed_body(body)["choices"]
        decoded = skyrl_wire.decode_packed_routed_experts(choice["routed_experts"])
        assert np.array_equal(decoded, ids)
        written = skyrl_wire.pack_routed_experts(ids)
        assert written == routecap.skyrl.packed(given)
        assert routecap.skyrl.read(written, experts=experts) == given


def test_turns_make_one_trace_of_skyrls_and_its_batch():
    ids, whole = routing(512, 6, rows=23, seed=3)
    small, first_turn = routing(512, 6, rows=9, below=100, seed=4)  # one byte, and then two
    whole = routecap.merge([first_turn, whole.slice(9)])
    ids[:9] = small
    trace = skyrl_rows.RoutedExpertTrace()
    for prompt, generated in ((6, 4), (14, 10)):  # rows 0 to 8, 9 to 22
        turn = whole.slice(trace.prompt_start, prompt + generated - 1 - trace.prompt_start)
        trace.record_generation(
            prompt_token_count=prompt,
            generated_token_count=generated,
            routed_experts=routecap.skyrl.rows(turn, first=trace.prompt_start),
        )
    mask = [0] * 6 + [1] * 4 + [0] * 4 + [1] * 10
    traced = trace.finalize(token_count=24, loss_mask=mask)
    assert np.array_equal(traced, ids)
    batch = skyrl_batch._collate_rollout_expert_indices(
        [traced, routecap.skyrl.rows(first_turn)], np.array([24, 10])
    )
    want = [
        *ids,
        np.broadcast_to(np.arange(6), (3, 6)),
        *small,
        np.broadcast_to(np.arange(6), (3, 6)),
    ]
    assert np.array_equal(batch.values.numpy(), want)


def test_skyrl_finds_columns_by_the_layers_number():
    ids, given = routing(64, 4, layers=3, layer_map=[1, 2, 4])
    rows = routecap.skyrl.rows(given, layers=6)
    assert np.array_equal(rows[:, [1, 2, 4]], ids) and not rows[:, [0, 3, 5]].any()
    assert routecap.skyrl.read(rows, experts=64, layer_map=[1, 2, 4]) == given
    with pytest.raises(routecap.Error, match="layers"):
        routecap.skyrl.rows(given)


def test_skyrl_refuses_columns_of_dense_layers_that_are_not_zeros():
    """What routecap's plugin gave in vLLM, and what it gives."""
    ids, _ = routing(64, 4, layers=3)
    ids[:, 1] = -1
    with pytest.raises(ValueError, match="must be non-negative"):
        skyrl_wire.pack_routed_experts(ids)
    ids[:, 1] = 0
    packed = skyrl_wire.pack_routed_experts(ids)
    given = routecap.skyrl.read(packed, experts=64, layer_map=[0, 2])
    assert given.complete and np.array_equal(given.ids(), ids[:, [0, 2]])


# ---- ART


def answer_of(prompt, completions):
    return {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "prompt_token_ids": prompt,
        "choices": [
            {
                "index": index,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "é"},
                "token_ids": completion,
            }
            for index, completion in enumerate(completions)
        ],
    }


@pytest.mark.parametrize(("experts", "k"), SHAPES)
def test_art_reads_every_choice_and_aligns_its_rows(experts, k):
    given = [routing(experts, k, rows=n, seed=n) for n in (9, 11)]
    answer = answer_of([1, 2, 3, 4], [[5] * 6, [6] * 8])
    body = routecap.art.write(answer, {n: each for n, (_, each) in enumerate(given)})
    assert art.is_routed_experts_response(body)
    response, arrays = art.decode_routed_experts_response(body)
    assert [choice.index for choice in response.choices] == [0, 1]
    for index, (ids, _) in enumerate(given):
        assert np.array_equal(arrays[index], ids) and arrays[index].num_experts == experts
        assert arrays[index].dtype == art_arrays.moe_route_dtype(experts)
        art_arrays.attach_moe_routing_metadata_to_choice(
            choice=response.choices[index],
            response_payload=answer,
            choice_index=index,
            routed_experts=arrays[index],
        )
        tokens, rows = art_trajectories.choice_routes(response.choices[index], response)
        assert tokens == answer["prompt_token_ids"] + answer["choices"][index]["token_ids"]
        assert rows[:-1] == ids.tolist() and set(np.ravel(rows[-1])) == {-1}


@pytest.mark.parametrize(("experts", "k"), SHAPES)
def test_what_was_written_for_art_is_read_again(experts, k):
    given = {n: routing(experts, k, rows=n + 1, seed=n)[1] for n in (0, 2, 7)}
    answer = answer_of([1], [[2, 3]])
    assert routecap.art.read(routecap.art.write(answer, given)) == (answer, given)
    body = routecap.art.write(json.dumps(answer).encode(), given)
    for size in range(len(body)):
        with pytest.raises(routecap.Error):
            routecap.art.read(body[:size])
    with pytest.raises(routecap.Error, match="1 bytes follow"):
        routecap.art.read(body + b"\0")
    huge = struct.pack("<8sQII", b"ARTRTE2\0", 2, 1, experts) + b"{}"
    huge += struct.pack("<IB3xQQQ", 0, 1, 1 << 40, 1, 1)
    with pytest.raises(routecap.Error, match="ends in an array"):
        routecap.art.read(huge)
    with pytest.raises(routecap.Error, match="experts"):
        routecap.art.read(body, experts=experts + 1)


def test_dense_columns_of_arts_server_are_left_out():
    ids, given = routing(64, 4, layers=2, layer_map=[1, 2])
    columns = np.concatenate([np.broadcast_to(np.arange(4), (11, 1, 4)), ids], 1)
    body = routecap.art.write(
        answer_of([1], [[2]]), {0: routecap.Routing.from_arrays(columns, experts=64)}
    )
    assert routecap.art.read(body, layer_map=[1, 2])[1] == {0: given}


# ---- What cannot cross


def test_what_cannot_be_said_is_an_error_and_never_a_filler():
    ids, _ = routing(64, 4)
    ids[5, 1] = -1
    answer, lacking = answer_of([1], [[2]]), routecap.Routing.from_arrays(ids, experts=64)
    for write in (routecap.skyrl.rows, lambda each: routecap.art.write(answer, {0: each})):
        with pytest.raises(routecap.Error, match="1 are: the first in row 5, layer 1, UNWRITTEN"):
            write(lacking)
        with pytest.raises(routecap.Error, match="begins at 6"):
            write(lacking.slice(6))
        with pytest.raises(routecap.Error, match="physical|id space"):
            write(routecap.Routing.from_arrays(ids[6:], experts=64, id_space="physical"))
        write(routecap.Routing.from_arrays(ids[6:], experts=64, tags=3))
    dense = routecap.Routing.from_arrays(ids[6:], experts=64, layer_map=[1, 2, 4])
    with pytest.raises(routecap.Error, match=r"layers \[0, 3\] have no routing"):
        routecap.art.write(answer, {0: dense})
    with pytest.raises(routecap.Error, match=r"\[64, 65\] experts"):
        routecap.art.write(answer, {0: routing(64, 4)[1], 1: routing(65, 4)[1]})
    with pytest.raises(routecap.Error, match="choice -1"):
        routecap.art.write(answer, {-1: routing(64, 4)[1]})
