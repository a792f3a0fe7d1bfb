"""Messages of the wire: against NumPy, base64 and json, the released packages where they are
installed, and the golden files.
"""

import ast
import base64
import io
import json
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from numpy.typing import NDArray
from routecap import Wire, WireFact

GOLDEN = Path(__file__).parents[3] / "tests" / "wire" / "golden"


def rows(count: int, columns: int, k: int, experts: int, seed: int = 0) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return np.array([random.permutation(experts)[:k] for _ in range(count * columns)]).reshape(
        count, columns, k
    )


def npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def messages(ids: NDArray[np.int64], dtype: str, start: int = 0) -> dict[str, Any]:
    """As NumPy, base64 and json write them."""
    array = ids.astype(dtype)
    return {
        "npy": npy(array),
        "npy.base64": b64(npy(array)),
        "raw": array.tobytes(),
        "raw.base64": b64(array.tobytes()),
        "object": {
            "data": b64(array.tobytes()),
            "shape": list(array.shape),
            "start": start,
            "dtype": dtype,
        },
        "nrlre1": f"nrlre1:{dtype}:{'x'.join(map(str, array.shape))}:{b64(array.tobytes())}",
        "lists": array.tolist(),
    }


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
)
@pytest.mark.parametrize(("columns", "k", "experts"), [(1, 1, 3), (3, 8, 128), (5, 6, 100)])
def test_what_python_writes_arrives(dtype: str, columns: int, k: int, experts: int) -> None:
    ids = rows(17, columns, k, experts)
    for name, message in messages(ids, dtype).items():
        hint: Any = {"columns": columns, "k": k, "dtype": dtype} if name.startswith("raw") else {}
        routing, report = routecap.wire_decode(message, name, experts=experts, rows=17, **hint)
        assert (routing.ids(np.int64) == ids).all() and report.cells_valid == 17 * columns


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_npy_is_read(version: tuple[int, int]) -> None:
    ids = rows(4, 2, 2, 16)
    routing, report = routecap.wire_decode(npy(ids, version), experts=16)
    assert (routing.ids(np.int64) == ids).all() and report.version == version[0]


def test_what_is_written_is_what_python_writes() -> None:
    ids = rows(9, 3, 8, 128)
    routing = routecap.Routing.from_wire(ids.tolist(), "lists", experts=128)
    for name, message in messages(ids, "int16").items():
        expected = (
            json.dumps(message, separators=(",", ":"))
            if isinstance(message, (dict, list))
            else message
        )
        got = routing.to_wire(name, dtype=None if name == "lists" else "int16")
        assert got == (expected if isinstance(expected, bytes) else expected.encode())


def test_arrays_that_are_not_in_c_order_or_no_integers_are_refused() -> None:
    for array in (
        np.asfortranarray(rows(4, 2, 2, 16)),
        rows(4, 2, 2, 16).astype(">i4"),
        np.zeros((2, 2, 2)),
        np.zeros((2, 2), np.int32),
    ):
        with pytest.raises(routecap.ArgumentError):
            routecap.wire_decode(npy(array), experts=16)


def test_dense_layers_are_left_out() -> None:
    ids = rows(5, 4, 2, 16)
    ids[:, 0] = 0
    routing, report = routecap.wire_decode(
        npy(ids.astype(np.uint8)), "npy", experts=16, layer_map=[1, 2, 3]
    )
    assert routing.layer_map.tolist() == [1, 2, 3] and (routing.ids(np.int64) == ids[:, 1:]).all()
    assert (report.columns, report.columns_left_out, report.columns_in_use) == (4, 1, 0)
    assert (np.load(io.BytesIO(routing.to_wire("npy", columns=4))) == ids).all()
    with pytest.raises(routecap.ArgumentError, match="layer_map"):
        routecap.wire_decode(npy(ids.astype(np.uint8)), "npy", experts=16, layers=3)


def test_missing_rows_are_named() -> None:
    ids = rows(6, 2, 2, 16).astype(np.int16)
    ids[1], ids[2], ids[3, 0], ids[4, 1] = -1, 0, 99, [3, 3]
    routing, report = routecap.wire_decode(npy(ids), experts=16)
    assert not routing.complete and report.cells_valid == 6
    assert (
        report.cells_negative,
        report.cells_zero,
        report.cells_out_of_range,
        report.cells_duplicate,
        report.rows_zero,
    ) == (2, 2, 1, 1, 1)
    assert routing.reasons().tolist() == [[0, 0], [1, 1], [1, 1], [3, 0], [0, 4], [0, 0]]
    with pytest.raises(routecap.Error) as refused:
        routecap.wire_decode(npy(ids), experts=16, strict=True)
    assert refused.value.status == routecap.Status.ERR_INCOMPLETE


def test_nothing_is_lost_without_leave() -> None:
    routing = routecap.Routing.from_arrays(
        rows(4, 2, 2, 16), first=3, experts=16, tags=[1, 2, 3, 4]
    )
    with pytest.raises(routecap.Error, match="first, tags") as refused:
        routing.to_wire("vllm")
    assert refused.value.status == routecap.Status.ERR_LOSSY
    message, report = routecap.wire_encode(routing, "vllm", allow=("first", "tags"))
    assert report.lost == WireFact.FIRST | WireFact.TAGS
    assert routecap.wire_decode(message, experts=16)[1].format == Wire.NPY_BASE64


@pytest.mark.parametrize("name", ["npy", "npy.base64", "raw.base64", "object", "nrlre1", "lists"])
def test_a_message_that_is_not_utf_8_is_an_error_of_ours(name: str, tmp_path: Path) -> None:
    """The library's text quotes bytes of the message. Decoded strictly, it was a
    UnicodeDecodeError.
    """
    message = messages(rows(2, 2, 2, 16), "int16")[name]
    text = message if isinstance(message, (bytes, str)) else json.dumps(message)
    data = text if isinstance(text, bytes) else text.encode()
    file = tmp_path / f"a{routecap.wire_formats()[name].ending}"
    hint: Any = {"experts": 16, "columns": 2, "k": 2}
    quoted = 0
    for at, byte in product(range(len(data)), b"\xdf\xff\x80"):
        wrong = data[:at] + bytes([byte]) + data[at + 1 :]
        try:
            routecap.wire_decode(wrong, name, **hint)
        except routecap.Error as reason:
            quoted += "\ufffd" in str(reason)
            file.write_bytes(wrong)
            with pytest.raises(routecap.Error):
                routecap.load(file, wire=hint)
    assert quoted or name in ("npy.base64", "raw.base64", "lists")  # these quote nothing


def test_a_hint_without_experts_is_told_so() -> None:
    with pytest.raises(routecap.ArgumentError, match="hint.experts"):
        routecap.Routing.from_wire([[[1, 2]]], "lists")
    with pytest.raises(TypeError, match="layer_mapp"):
        routecap.Routing.from_wire([[[1, 2]]], "lists", experts=4, layer_mapp=[1])
    routing = routecap.Routing.from_wire([[[1, 2]]], "lists", experts=4)
    assert routecap.Routing.from_wire(routing.serialize()) == routing


def test_pieces_and_batches() -> None:
    ids = rows(50, 3, 8, 256)
    text = messages(ids, "uint8")["npy.base64"]
    decoder = routecap.WireDecoder("vllm", experts=256)
    for at in range(0, len(text), 100):
        decoder.write(text[at : at + 100].encode())
    assert (decoder.finish()[0].ids(np.int64) == ids).all()
    with pytest.raises(routecap.Error):
        decoder.finish()
    found = routecap.wire_decode_batch(
        [text] * 7, "vllm", threads=3, experts=256, hints=[{"first": n} for n in range(7)]
    )
    assert [routing.first for routing, _ in found] == list(range(7))
    with pytest.raises(routecap.ArgumentError) as refused:
        routecap.wire_decode_batch([text, "k05VTVBZ", text], "vllm", experts=256)
    assert refused.value.__notes__ == ["in message 1"]


def test_two_threads_do_not_share_a_call_of_a_decoder() -> None:
    from threading import Thread

    decoder = routecap.WireDecoder("lists", experts=16)
    errors: list[routecap.Error] = []

    def write() -> None:
        for _ in range(200):
            try:
                decoder.write(b" " * 100_000)
            except routecap.Error as error:
                errors.append(error)

    threads = [Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(error.status == routecap.Status.ERR_STATE for error in errors)
    decoder.write(b"[[[1,2]]]")
    assert decoder.finish()[0].rows == 1


@pytest.mark.parametrize("name", ["npy", "npy.base64", "raw.base64", "object", "nrlre1", "lists"])
def test_two_answers_are_joined_by_slices(name: str) -> None:
    ids = rows(20, 3, 8, 128)
    later = ids[7:].copy()
    later[0], later[1] = 0, later[2]  # before the decode server takes over: nothing, and others
    whole, head, tail = (
        messages(part, "int16", start)[name]
        for part, start in ((ids, 0), (ids[:12], 0), (later, 7))
    )
    shape: Any = {"experts": 128, "columns": 3, "k": 8, "dtype": "int16"}
    prefill = routecap.Routing.from_wire(head, name, **shape)
    decode = routecap.Routing.from_wire(tail, name, first=7, **shape)
    joined = routecap.merge([prefill.slice(0, 9), decode.slice(9)])
    assert joined == routecap.Routing.from_wire(whole, name, **shape)
    message = joined.to_wire(name, dtype=None if name == "lists" else "int16")
    assert (routecap.Routing.from_wire(message, name, **shape).ids(np.int64) == ids).all()
    gap = routecap.merge([prefill.slice(0, 7), decode])
    with pytest.raises(routecap.Error) as refused:
        gap.to_wire(name, dtype=None if name == "lists" else "int16")
    assert refused.value.status == routecap.Status.ERR_LOSSY
    with pytest.raises(routecap.Error) as refused:
        prefill.slice(0, 13)
    assert refused.value.status == routecap.Status.ERR_OUT_OF_RANGE


def test_files_are_messages_by_their_endings(tmp_path: Path) -> None:
    routing = routecap.Routing.from_arrays(rows(6, 3, 2, 16), experts=16)
    for each in routecap.wire_formats().values():
        if not each.ending or each.ending == ".routecap":
            continue
        path = tmp_path / f"one{each.ending}"
        routecap.save(path, routecap.Sample(routing, {"prompt_tokens": 3}))
        hint: Any = {"experts": 16, "columns": 3, "k": 2}
        [(name, sample)] = routecap.load(path, wire=hint).items()
        assert name == "one" and sample.routing == routing and sample.info == {"prompt_tokens": 3}
    with pytest.raises(routecap.ArgumentError, match="does not write"):
        routecap.save(tmp_path / "one.txt", routing)
    with pytest.raises(routecap.ArgumentError, match="one.npy"):
        routecap.load(tmp_path / "one.npy")


# ---- Golden files: what the projects' own functions wrote. tests/wire/golden/README.md says how ------------------


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / "golden.json").read_text())
    return found


@pytest.mark.parametrize("name", golden())
def test_a_golden_file_says_what_its_writer_meant(name: str) -> None:
    about = golden()[name]
    ids = np.fromfunction(
        lambda r, c, i: (5 * r + 3 * c + i) % about["experts"], about["shape"], dtype=np.int64
    )
    hint = about["hint"]
    routing, report = routecap.wire_decode(
        (GOLDEN / name).read_bytes(), about["format"], experts=about["experts"], **hint
    )
    expected = ids if "layer_map" not in hint else ids[:, hint["layer_map"]]
    assert (routing.ids(np.int64) == expected).all() and report.cells_valid == expected.shape[
        0
    ] * expected.shape[1]
    if about["same"]:
        options = {"dtype": about["dtype"]} if about["dtype"] else {}
        assert (
            routing.to_wire(about["format"], **options, allow=("first",))
            == (GOLDEN / name).read_bytes()
        )


def function_of(module: str, path: str, name: str, names: dict[str, Any]) -> Any:
    """One function of a package that is installed, without importing the package."""
    top, *below = module.split(".")
    spec = find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{module} is not installed")
    tree = ast.parse(Path(spec.submodule_search_locations[0], *below, path).read_text())
    function = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    function.decorator_list, function.returns = [], None
    for argument in function.args.args:
        argument.annotation = None
    exec(compile(ast.Module([function], []), path, "exec"), names)
    return names[name]


def test_sglang_encodes_and_decodes_the_same() -> None:
    class Codec:
        b64encode, b64decode = staticmethod(base64.b64encode), staticmethod(base64.b64decode)

    class Tensor:
        def __init__(self, array: NDArray[Any]) -> None:
            self.array = array

        def numpy(self) -> NDArray[Any]:
            return self.array

    encode = function_of(
        "sglang",
        "srt/managers/detokenizer_manager.py",
        "_b64_encode_per_request",
        {"pybase64": Codec},
    )
    decode = function_of(
        "sglang",
        "srt/state_capturer/routed_experts.py",
        "extract_routed_experts_from_meta_info",
        {"pybase64": Codec, "np": np},
    )
    ids = rows(30, 4, 8, 128)
    [text] = encode([Tensor(ids.astype(np.int32))])
    routing = routecap.Routing.from_wire(text, "sglang", experts=128, columns=4, k=8, rows=30)
    assert (routing.ids(np.int64) == ids).all()
    assert (
        decode({"meta_info": {"routed_experts": routing.to_wire("sglang").decode()}}) == ids.ravel()
    ).all()


def test_verifiers_reads_the_same() -> None:
    class Node:
        def __init__(self, tokens: int) -> None:
            self.token_ids, self.routed_experts, self.sampled = [0] * tokens, None, True

    class Trace:
        nodes = [Node(4), Node(7)]

    import binascii

    names: dict[str, Any] = {
        "binascii": binascii,
        "np": np,
        "_replace_placeholder_routing_row": lambda *_: None,
    }
    attribute = function_of("verifiers", "v1/graph.py", "_attribute_routed_experts", names)
    ids = rows(11, 3, 2, 16)
    routing = routecap.Routing.from_wire(ids.tolist(), "lists", experts=16)
    attribute(Trace, [], [0, 1], 0, json.loads(routing.to_wire("verifiers")))
    assert (np.concatenate([node.routed_experts for node in Trace.nodes]) == ids).all()


def test_megatron_writes_what_is_read() -> None:
    serialize = function_of(
        "megatron.core", "inference/inference_request.py", "serialize_ndarray", {"np": np}
    )
    unwrap = function_of(
        "megatron.core", "inference/inference_request.py", "unwrap_serialized_tensors", {}
    )
    ids = rows(9, 3, 4, 64).astype(np.int16)
    sent = json.dumps(unwrap({"routing_indices": ("ndarray", serialize(ids))})["routing_indices"])
    assert (routecap.Routing.from_wire(sent, "megatron", experts=64).ids(np.int64) == ids).all()
