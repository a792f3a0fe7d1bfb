"""A program with mistakes, which a type checker has to find: the lines that end in "wrong", and no
others. It is never run."""

from typing import Any, assert_type

import numpy as np
import routecap
from numpy.typing import NDArray
from routecap.names import BackendName

# ---- As it should be: members and their names

place: BackendName = "cuda"
capturer = routecap.Capturer(layers=4, k=2, experts=8, rows=16, backend=place, role="mirror")
other = routecap.Capturer(backend=routecap.Backend.HOST, sink_dtype=np.int32, id_space="physical")
routecap.memory(layers=4, k=2, experts=8, rows=16, backend="host", sink_dtype="int64")
request = capturer.open(policy="replace")
capturer.open_batch(3, policy=routecap.Policy.KEEP)
step = capturer.issue(routecap.spans(1), snapshot="make")
with capturer.step(4) as running:
    running.record(0, np.zeros((4, 2), np.int32), dtype="id16_bf16", first_row=2)
    running.record_layers(np.zeros((4, 4, 2), np.int32), columns=2)
    assert_type(running, routecap.OpenStep)
    assert_type(running.issue(routecap.spans(1), tag=3), routecap.Step)
capturer.record(0, np.zeros((4, 2), np.int32), dtype="id16_bf16")
routing = request.extract(mode="take")
routing.copy_to(np.zeros((3, 4, 2)), order="layer_major")
routing.ids(np.int64, order=routecap.Order.ROW_MAJOR)
routecap.Router("deepseek_v3", score="sigmoid", group_score="top2", bias_dtype="bf16")
batch = routecap.spans(request=[request, 7], position=range(2), rows=np.ones(2, np.uint32))
routecap.spans(out=batch, request=capturer.open_batch(2), flags="speculative")
routecap.spans(2, flags=routecap.SpanFlag.DEVICE_POSITIONS, position_end=routecap.MAX_POSITION)
routing.to_wire("nemo-rl", dtype="int8", allow=["reasons", routecap.WireFact.TAGS])
routecap.wire_decode(b"", routecap.wire_format(str(place)), experts=8, column_kind="captured")
routecap.save("a.npy", routing, wire={"columns": 4})
assert_type(batch, NDArray[np.void])
assert_type(step.status, routecap.Status)
assert_type(step.lost, bool)
assert_type(routing.ids(), NDArray[np.int16])
assert_type(routing.ids("i32"), NDArray[Any])
assert_type(routecap.backends()[place], routecap.BackendInfo)

# ---- Typos

routecap.Capturer(layers=4, k=2, experts=8, rows=16, backend="gpu")  # wrong
routecap.Capturer(layers=4, k=2, experts=8, rows=16, bakcend="cuda")  # wrong
routecap.Capturer(role="onwer")  # wrong
routecap.Capturer(id_space="local")  # wrong
routecap.Capturer(sink_dtype="int23")  # wrong
routecap.Capturer(sink_dtype=np.float32)  # wrong
routecap.Capturer(layer_provenance=["captured", "recomputd"])  # wrong
routecap.memory(backend="Cuda")  # wrong
capturer.open(policy="repalce")  # wrong
capturer.open("a")  # wrong
capturer.open_batch(["a", "b"])  # wrong
capturer.open_batch(3, policy="replaced")  # wrong
capturer.issue(routecap.spans(1), snapshot="made")  # wrong
capturer.record(0, np.zeros((4, 2)), dtype="id16bf16")  # wrong
capturer.record(0, [[1, 2]])  # wrong
capturer.record(0, np.zeros((4, 2)), live_rows="3")  # wrong
capturer.begin(4, stream="main")  # wrong
routing.copy_to([1, 2])  # wrong
routecap.Routing.deserialize("a")  # wrong
capturer.record_layers({}, dtype="i23")  # wrong
running.record(0, np.zeros((4, 2)), dtype="id16bf16")  # wrong
running.record(0, np.zeros((4, 2)), frist_row=2)  # wrong
running.wait()  # wrong
step.record(0, np.zeros((4, 2)))  # wrong
capturer.extract(request)  # wrong
capturer.request("a")  # wrong
request.accept(3, 1)  # wrong
request.extract(mode="steal")  # wrong
capturer.close_batch([request])  # wrong
request.extract_into(np.zeros((3, 4, 2)), order="rows")  # wrong
routing.copy_to(np.zeros((3, 4, 2)), order="row-major")  # wrong
routing.ids(order="layers")  # wrong
routing.ids("int23")  # wrong
routing.masked(order="layers")  # wrong
routing.mask(order="layers")  # wrong
routecap.Routing.from_arrays(np.zeros((3, 4, 2)), experts=8, id_space="local")  # wrong
routecap.Routing.from_segments([], layers=4, k=2, rows=0, dtype="u9")  # wrong
routecap.Router("best")  # wrong
routecap.Router(score="relu")  # wrong
routecap.Router(group_score="top3")  # wrong
routecap.Router(bias_dtype="bf61")  # wrong
routecap.spans(requset=3)  # wrong
routecap.spans(request="a")  # wrong
routecap.spans(rows=2.5)  # wrong
routecap.spans(position=[0.5])  # wrong
routecap.spans(sink_row=None)  # wrong
routecap.spans(flags="speculativ")  # wrong
routecap.spans(flags=1)  # wrong
routecap.spans(out=[1, 2])  # wrong
routing.to_wire("nemorl")  # wrong
routing.to_wire("vllm", alow=["tags"])  # wrong
routing.to_wire("vllm", allow=["tag"])  # wrong
routecap.Routing.from_wire(b"", "sglan")  # wrong
routecap.Routing.from_wire(b"", "sglang", expert=8)  # wrong
routecap.wire_decode(b"", "npy", dtype="int23")  # wrong
routecap.wire_encode(routing, "npz")  # wrong
routecap.WireDecoder("object", column_kind="all")  # wrong
routecap.save("a.npy", routing, wire={"column": 4})  # wrong
routecap.Plan([3], layers=1, k=2, layout="packd")  # wrong
routecap.Plan([3], layers=1, k=2, lost="balance")  # wrong
routecap.Sequence(4, 2, 8, id_space="local")  # wrong
