"""Every conformance vector (tests/vectors/README.md) through the package, and through its generated
module only where the package has no words for
what is wrong in a call.
"""

import copy
import gc
import inspect
import json
import os
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import routecap
from numpy.lib.stride_tricks import as_strided
from routecap import _structs as structs
from routecap._library import raw
from routecap._tensors import describe

from vector_calls import CALLS

FOLDER = Path(os.environ.get("ROUTECAP_VECTORS", Path(__file__).parents[3] / "tests" / "vectors"))
FILL = 77  # whatever a call may write is filled with it before
TYPES = {
    1: np.uint8,
    2: np.int16,
    3: np.uint16,
    4: np.int32,
    5: np.uint32,
    6: np.int64,
    7: np.uint32,
    16: np.float32,
    17: np.uint16,
    18: np.uint16,
}
# Fields that point to arrays, and the dtype of these that have always the same.
ARRAYS = {
    "layer_map": np.int32,
    "layer_experts": np.uint32,
    "layer_k": np.uint32,
    "layer_min_k": np.uint32,
    "layer_visit": np.uint32,
    "layer_provenance": np.int32,
    "live_rows": np.int32,
    "row_base": np.int32,
    "row_index": np.int32,
    "table": np.int32,
    "validity": np.uint8,
    "tags": np.uint64,
    "weights_validity": np.uint8,
}
# Those that have an element for each layer.
LAYERS = [name for name in ARRAYS if name.startswith("layer_")]
POINTERS = {*ARRAYS, "ids", "logits", "tokens", "positions", "weights"}
WORDS = {
    "ALL": routecap.ALL,
    "LANDED": routecap.LANDED,
    "nan": np.nan,
    "inf": np.inf,
    "-inf": -np.inf,
}


def load() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        if path.name == "abi.json":  # what only C can say
            continue
        content = json.loads(path.read_text())
        found += [
            pytest.param(vector, id=f"{content['topic']}: {vector['name']}")
            for vector in content["vectors"]
        ]
    return found


def number(value: Any) -> Any:
    """A number, or what stands for one."""
    if isinstance(value, str):
        return WORDS[value] if value in WORDS else int(value)
    return value


def array(values: Any, dtype: Any) -> Any:
    numbers = [number(value) for value in values]
    if dtype is np.uint32:  # negative ones too
        numbers = [each % 2**32 for each in numbers]
    return np.array(numbers, dtype=dtype)


def weights_of(values: Any, dtype: int) -> Any:
    """Weights as they lie in memory: of 16 bits by their bits, "nan" any NaN."""
    if dtype == 16:
        return array(values, np.float32)
    return np.array([0x7FFF if value == "nan" else number(value) for value in values], np.uint16)


def is_nan(found: Any, dtype: int) -> bool:
    if dtype == 16:
        return bool(np.isnan(found))
    return (int(found) & 0x7FFF) > (0x7F80 if dtype == 18 else 0x7C00)


def same_weights(found: Any, expected: Any, dtype: int, where: str) -> None:
    assert len(found) == len(expected), where
    for i, (one, other) in enumerate(zip(found, expected)):
        if other == "nan":
            assert is_nan(one, dtype), f"{where}[{i}] is {one}, not NaN"
        else:
            wanted = weights_of([other], dtype)[0]
            assert one == wanted and np.signbit(one) == np.signbit(wanted), (
                f"{where}[{i}] is {one}, not {wanted}"
            )


def data(pieces: list[str]) -> bytes:
    return bytes.fromhex("".join(pieces))


def pieces_of(value: Any) -> bytes:
    return data(value) if isinstance(value, list) else bytes.fromhex(value)


def compare(found: Any, expected: Any, where: str) -> None:
    """Only what is present in `expected`."""
    if hasattr(found, "_asdict"):
        found = found._asdict()
    elif getattr(getattr(found, "dtype", None), "names", None):
        found = records(found)
    if isinstance(expected, dict):
        for name, value in expected.items():
            compare(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), (
            f"{where} has {len(found)} elements, not {len(expected)}"
        )
        for i, value in enumerate(expected):
            compare(found[i], value, f"{where}[{i}]")
    elif isinstance(expected, str) and expected not in WORDS and not expected.lstrip("-").isdigit():
        assert found == expected, where
    elif expected is None:
        assert not found, f"{where} is {found}, not none"
    else:
        expected = number(expected)
        assert int(found) == expected, f"{where} is {found}, not {expected}"


def records(values: Any) -> list[dict[str, Any]]:
    return [dict(zip(values.dtype.names, value.tolist())) for value in values]


def name_of(status: int) -> str:
    return f"ROUTECAP_{routecap.Status(status).name}"


class Memory:
    """Buffers of sink_bind, by name."""

    def __init__(self) -> None:
        self.buffers: dict[str, Any] = {}

    def get(self, entry: dict[str, Any], dtype: Any) -> Any:
        return self.buffers.setdefault(entry["memory"], np.zeros(entry.get("elements", 0), dtype))[
            entry.get("start", 0) :
        ]


class Lent(bytearray):
    """Memory that can be seen to go."""


class Replayer:
    """Each method replays the call of its name: it takes `in` and returns the status and what the
    call delivered.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.memory = Memory()
        self.positions: dict[tuple[str, int], Any] = {}  # of steps whose rows arrive later
        self.raw = False
        self.held: list[Any] = []  # arrays that structs of the call point to
        self.buffers: dict[str, Any] = {}  # that a failing call may not have changed
        self.lent: list[weakref.ref[Lent]] = []
        self.lossy: weakref.WeakSet[routecap.Capturer] = (
            weakref.WeakSet()
        )  # those that warned of a lost step

    def run(self, vector: Any) -> None:
        for i, call in enumerate(vector["calls"]):
            where = f"call {i}, {call['call']}"
            self.raw, self.held = call.get("raw", False), []
            out = call.get("out", {})
            delivered: dict[str, Any] = {}
            try:
                if call["call"] in CALLS:
                    status, delivered = self.like(call["in"], *CALLS[call["call"]])
                else:
                    status, delivered = getattr(self, call["call"])(call["in"], out)
                text = raw.routecap_last_error()
            except routecap.Error as error:
                status, text = error.status, str(error)
                if error.needed is not None:
                    delivered = {"needed": error.needed}
                delivered.update(self.buffers)
            if "status" in call:
                assert name_of(status) == call["status"], f"{where}: {text}"
                if status < 0 or status in (1, 2, 4, 5):
                    assert text and "\n" not in text, where
            for name, expected in out.items():
                if name in (
                    "capturer",
                    "routing",
                    "sequence",
                    "store",
                    "child",
                    "prompt",
                    "generated",
                    "slice",
                    "merged",
                ) and isinstance(expected, str):
                    self.names[expected] = delivered[name]
                elif name in ("requests", "routings"):
                    for each, key in zip(delivered[name], expected, strict=True):
                        if isinstance(key, str):
                            self.names[key] = each
                        else:
                            assert (each is None) if key is None else int(each) == key, where
                elif name == "weights":
                    np.testing.assert_allclose(
                        delivered[name],
                        array(expected, np.float32),
                        rtol=0,
                        atol=out.get("tolerance", 0),
                        err_msg=where,
                    )
                elif name != "tolerance":
                    compare(delivered[name], expected, f"{where}: {name}")
            self.buffers = {}

    def finish(self) -> None:
        for kind in (routecap.Routing, routecap.Capturer, routecap.Store):
            for each in self.names.values():
                if isinstance(each, kind):
                    each.free() if isinstance(each, routecap.Routing) else each.close()
        self.names.clear()
        if any(lent() is not None for lent in self.lent):
            gc.collect()
        assert all(lent() is None for lent in self.lent), "lent memory was not given back"

    def lend(self, values: Any) -> Any:
        """The same array in memory of its own, which must have gone at the end of the vector."""
        memory = Lent(values.tobytes())
        self.lent.append(weakref.ref(memory))
        return np.frombuffer(memory, values.dtype).reshape(values.shape)

    def capturer(self, call: Any) -> Any:
        return self.names[call["capturer"]]

    def request(self, value: Any) -> Any:
        return self.names[value] if isinstance(value, str) else number(value)

    def handle(self, value: Any) -> int:
        return int(self.request(value))

    def request_of(self, call: Any) -> Any:
        """Of a call on one request."""
        return self.capturer(call).request(self.handle(call["request"]))

    # ---- What is called by its signature

    def like(self, call: Any, function: str, given: str, results: str) -> Any:
        name, _, method = function.partition(".")
        owner = self.named(name, call)
        if method in ("free", "close") and name != "request":
            del self.names[call[name]]
        does = getattr(owner, method)
        places = inspect.signature(does).parameters
        arguments, words = [], {}
        for each in given.split():
            value = self.argument(each, call)
            if each in places and places[each].kind is inspect.Parameter.KEYWORD_ONLY:
                words[each] = value
            else:
                arguments.append(value)
        result = does(*arguments, **words)
        names = results.split()
        return 0, dict(zip(names, [result] if len(names) == 1 else result or ()))

    def named(self, name: str, call: Any) -> Any:
        """The object of this name; a request, open or not, as one of the capturer that is named."""
        value = self.request(call[name])
        if name == "request" and getattr(value, "capturer", None) is not self.capturer(call):
            return self.capturer(call).request(int(value))
        return value

    def argument(self, name: str, call: Any) -> Any:
        value = call[name]
        if name == "keys":
            return self.keys(value, self.names[call["store"]])
        return self.names[value] if name in ("routing", "store") else number(value)

    # ---- Structs of C, for what the package has no words for

    def address(self, name: str, value: Any, of: Any) -> int:
        """Where the array of a field is, as long as the call; `of` says its dtype."""
        if value is None:
            return 0
        dtype = ARRAYS.get(name) or TYPES.get(of.get(f"{name}_dtype", of.get("dtype")), np.int32)
        values = (
            weights_of(value, of.get("weights_dtype", 0))
            if name == "weights"
            else array(value if isinstance(value, list) else [value], dtype)
        )
        self.held.append(values)
        start = of.get(f"{name}_start", 0) * values.itemsize
        return int(describe(values, name).address) + start

    def struct(self, name: str, said: Any, **more: int) -> bytes:
        layout = getattr(structs, name)
        fields = {
            each: self.address(each, value, said) if each in POINTERS else number(value)
            for each, value in said.items()
            if each in layout.fields and each not in more
        }
        made: bytes = layout(**fields | more)
        return made

    def enter(self, entry: Any, said: Any, of: Any) -> None:
        """Fills an element of an array of structs."""
        for each, value in said.items():
            entry[each] = self.address(each, value, of) if each in POINTERS else number(value)

    # ---- Library

    def version(self, call: Any, out: Any) -> Any:
        major, minor, patch = routecap.version()
        return 0, {"version": major * 10000 + minor * 100 + patch}

    def get_api(self, call: Any, out: Any) -> Any:
        return 0, {"available": raw.routecap_get_api(call["major"], call["minor"])}

    def status_name(self, call: Any, out: Any) -> Any:
        return 0, {"name": raw.routecap_status_name(call["status"])}

    def backend_info(self, call: Any, out: Any) -> Any:
        try:
            backend = routecap.Backend(call["backend"])
        except ValueError:
            info = structs.backend.empty()
            status = raw.routecap_backend_info(call["backend"], info)
            return status, {"info": dict(zip(structs.backend.fields, structs.backend.read(info)))}
        found = routecap.backends()[backend.name.lower()]
        return 0, {
            "info": {
                "available": found.available,
                "devices": found.devices,
                "reserved": 0,
                "detail": found.detail,
            }
        }

    # ---- Capturer

    def config_init(self, call: Any, out: Any) -> Any:
        memory = structs.config.empty()
        status = raw.routecap_config_init(memory, structs.config.size)
        return status, {"config": dict(zip(structs.config.fields, structs.config.read(memory)))}

    def settings(self, config: dict[str, Any]) -> dict[str, Any] | bytes:
        """Settings, or the struct itself where settings cannot say it."""
        given = {
            name: [number(each) for each in value] if isinstance(value, list) else number(value)
            for name, value in config.items()
        }
        flags = given.pop("flags", 0)
        names = {flag: name.lower() for name, flag in routecap.ConfigFlag.__members__.items()}
        expressible = (
            flags < 2 * max(names)
            and not given.get("reserved")
            and given.get("sink_dtype", 0) in (0, *routecap.Dtype)
        )
        expressible = expressible and given.get("backend", 0) in (0, *routecap.Backend)
        expressible = expressible and all(
            len(given[name]) == given["layers"] for name in LAYERS if name in given
        )
        if not expressible:
            return self.struct("config", config)
        given.pop("reserved", None)
        if "weights_dtype" in given:
            given["weights"] = given.pop("weights_dtype")
        given.update({name: True for flag, name in names.items() if flags & flag})
        if not given.get("sink_dtype"):
            given.pop("sink_dtype", None)
        if given.get("role") != routecap.Role.DISABLED:
            given.setdefault("backend", 0)
        return given

    def config_memory(self, call: Any, out: Any) -> Any:
        settings = self.settings(call["config"])
        if isinstance(settings, bytes):
            memory = structs.memory.empty()
            return raw.routecap_config_memory(settings, memory), {
                "memory": dict(zip(structs.memory.fields, structs.memory.read(memory)))
            }
        return 0, {"memory": routecap.memory(**settings)._asdict()}

    def capturer_create(self, call: Any, out: Any) -> Any:
        config = dict(call["config"])
        if "budget_pages" in call:
            config["budget_bytes"] = (
                routecap.memory(**self.settings(config)).page_bytes * call["budget_pages"]
            )
        settings = self.settings(config)
        if isinstance(settings, bytes):
            return raw.routecap_capturer_create(settings)[0], {}
        return 0, {"capturer": routecap.Capturer(**settings)}

    def capturer_load(self, call: Any, out: Any) -> Any:
        load = self.capturer(call).load()
        _, layers, experts = load.counts.shape
        numbers = {
            name: getattr(load, name)
            for name in ("steps", "first_step", "last_step", "rows_prefill", "rows_decode")
        }
        return 0, {
            "load": {"layers": layers, "experts": experts} | numbers,
            "counts": load.counts.ravel().tolist(),
        }

    # ---- Sink

    def sink_bind(self, call: Any, out: Any) -> Any:
        sink = {
            name: number(value)
            for name, value in call["sink"].items()
            if name not in ("ids", "weights")
        }
        dtype = TYPES.get(sink["dtype"], np.int32)
        if "weights" in call["sink"]:
            beside = self.memory.get(
                call["sink"]["weights"], TYPES[self.capturer(call)._config.weights_dtype or 16]
            )
            sink["weights"] = describe(beside, "weights").address
        ids = self.memory.get(call["sink"]["ids"], dtype) if call["sink"].get("ids") else None
        rows, k, layers = sink.get("rows", 0), sink.get("k", 0), call["layers"]
        row_stride = sink.get("row_stride") or k
        layer_stride = sink.get("layer_stride") or rows * row_stride
        size = np.dtype(dtype).itemsize
        fits = (
            ids is not None
            and layers >= 1
            and min(rows, k, row_stride, layer_stride) > 0
            and sink["dtype"] in TYPES
        )
        if (
            "weights" in sink
            or not fits
            or (layers - 1) * layer_stride + (rows - 1) * row_stride + k > len(ids)
        ):
            address = 0 if ids is None else describe(ids, "ids").address
            beside = {"weights": sink.pop("weights")} if "weights" in sink else {}
            struct = self.struct("sink", sink, ids=address, **beside)
            return (
                raw.routecap_sink_bind(
                    self.capturer(call)._handle, call["first_layer"], layers, struct
                ),
                {},
            )
        tensor = as_strided(ids, (layers, rows, k), (layer_stride * size, row_stride * size, size))
        self.capturer(call).bind(call["first_layer"], tensor)
        return 0, {}

    def sink_layer(self, call: Any, out: Any) -> Any:
        found = self.capturer(call).sink(call["layer"])
        struct = structs.sink.empty()
        status = raw.routecap_sink_layer(self.capturer(call)._handle, call["layer"], struct)
        sink = dict(zip(structs.sink.fields, structs.sink.read(struct)))
        expected = out.get("sink", {}).get("ids", None)
        if isinstance(expected, dict):
            dtype = TYPES[sink["dtype"]]
            assert (
                sink["ids"]
                == describe(self.memory.get(expected, dtype), "ids").address
                == describe(found, "sink").address
            )
            sink["ids"] = expected
        else:
            assert (found is None) == (sink["ids"] == 0)
            sink["ids"] = None if found is None else True
        if "weights" in out.get("sink", {}):
            beside = out["sink"].pop("weights")
            if isinstance(beside, dict):
                kind = TYPES[self.capturer(call)._config.weights_dtype]
                found_at = describe(self.memory.get(beside, kind), "weights").address
                assert sink["weights"] == found_at
            else:
                assert (sink["weights"] != 0) == (beside is True)
        if isinstance(out.get("sink"), dict) and "ids" in out["sink"]:
            assert sink["ids"] == out["sink"]["ids"]
            sink["ids"] = out["sink"]["ids"]
            out["sink"] = {name: value for name, value in out["sink"].items() if name != "ids"}
        return status, {"sink": sink}

    def sink_write(self, call: Any, out: Any) -> Any:
        sink = self.capturer(call).sink(call["layer"])
        ids = array(call["ids"], sink.dtype).reshape(-1, sink.shape[1])
        sink[call["first_row"] : call["first_row"] + len(ids)] = ids
        if "weights" in call:
            beside = self.capturer(call).weights_sink(call["layer"])
            dtype = self.capturer(call)._config.weights_dtype
            bits = weights_of(call["weights"], dtype).view(beside.dtype).reshape(-1, sink.shape[1])
            beside[call["first_row"] : call["first_row"] + len(bits)] = bits
        return 0, {}

    # ---- Taps

    def source(self, source: Any, capturer: Any) -> tuple[dict[str, Any], Any]:
        """Keywords of record and a function that makes the tensor of a layer's elements."""
        dtype = source["dtype"]
        rows, k = source.get("rows", 0), source.get("k_source", 0) or capturer.k

        def tensor(values: Any, capturer: Any) -> Any:
            if values is None:
                return None
            elements = array(values, TYPES.get(dtype, np.int32))[source.get("ids_start", 0) :]
            columns = k
            row, column = source.get("row_stride") or columns, source.get("column_stride") or 1
            size = elements.dtype.itemsize
            if rows and (rows - 1) * row * (rows > 1) + (columns - 1) * column >= len(elements):
                raise LookupError
            return as_strided(elements, (rows, columns), (row * size, column * size))

        keywords: dict[str, Any] = {
            "columns": k or None,
            "none": source.get("none") or None,
            "first_row": source.get("first_row", 0),
            "offset": source.get("offset", 0),
        }
        for name in ("live_rows", "row_base"):
            if name in source:
                keywords[name] = np.array([source[name]], np.int32)
        if "row_index" in source:
            keywords["row_index"] = array(source["row_index"], np.int32)
        if dtype == 7 or dtype not in TYPES:
            keywords["dtype"] = dtype
        if source.get("flags"):
            keywords["overlap"] = source["flags"] == 1
        return keywords, tensor

    def raw_source(self, source: Any) -> bytes:
        source = {"table_size": len(source.get("table", []))} | source
        return self.struct("source", source)

    def layer_record(self, call: Any, out: Any) -> Any:
        capturer, source = self.capturer(call), call["source"]
        try:
            if (
                source.get("flags", 0) > 1
                or any(name.startswith("weights") for name in source)
                or "ids" not in source
                or source.get("table_size", 0)
                and "table" not in source
            ):
                raise LookupError
            keywords, tensor = self.source(source, capturer)
            if "table" in source:
                keywords["table"] = array(source["table"], np.int32)
            capturer.record(call["layer"], tensor(source["ids"], capturer), **keywords)
            return 0, {}
        except LookupError as missing:
            if isinstance(missing, routecap.Error):
                raise
            struct = self.raw_source(source)
            return raw.routecap_layer_record(capturer._handle, call["layer"], struct, 0), {}

    def layers_record(self, call: Any, out: Any) -> Any:
        capturer, source, layers = self.capturer(call), call["source"], call["layers"]
        numbers = [layer["layer"] for layer in layers]
        try:
            if (
                any(name.startswith("weights") for each in (source, *layers) for name in each)
                or len(set(numbers)) != len(numbers)
                or any("ids" not in layer for layer in layers)
                or not layers
                or source.get("flags", 0) > 1
            ):
                raise LookupError
            if (
                any("table" in layer for layer in layers)
                != all("table" in layer for layer in layers)
                or "ids" in source
                or "table" in source
            ):
                raise LookupError
            if source.get("table_size", 0) and not all(
                len(layer.get("table", [])) == source["table_size"] for layer in layers
            ):
                raise LookupError
            keywords, tensor = self.source(source, capturer)
            if "table" in layers[0]:
                keywords["tables"] = {
                    layer["layer"]: array(layer["table"], np.int32) for layer in layers
                }
            capturer.record_layers(
                {layer["layer"]: tensor(layer["ids"], capturer) for layer in layers}, **keywords
            )
            return 0, {}
        except LookupError as missing:
            if isinstance(missing, routecap.Error):
                raise
            struct, table = (
                self.raw_source(source),
                np.zeros(len(layers), structs.layer_source_dtype),
            )
            for entry, layer in zip(table, layers):
                self.enter(entry, layer, source)
            return raw.routecap_layers_record(capturer._handle, struct, table, 0), {}

    def router_of(self, router: Any) -> tuple[Any, dict[str, Any]]:
        fields = {
            name: number(value)
            for name, value in router.items()
            if name not in ("method", "bias", "hash_table", "bias_dtype", "hash_tokens")
        }
        keywords = dict(fields)
        if "bias" in router:
            keywords["bias"] = array(
                router["bias"], TYPES.get(router.get("bias_dtype"), np.float32)
            )
            if router.get("bias_dtype", 0) != 16:
                keywords["bias_dtype"] = router.get("bias_dtype", 0)
        return router.get("method"), keywords

    def router_init(self, call: Any, out: Any) -> Any:
        memory = structs.router.empty()
        status = raw.routecap_router_init(memory, structs.router.size, call["method"])
        found = dict(zip(structs.router.fields, structs.router.read(memory)))
        assert routecap.Router(call["method"])._fields == found
        for name, expected in out.get("router", {}).items():
            if isinstance(expected, float):
                assert found[name] == pytest.approx(expected, rel=1e-6)
                found[name] = expected
        out["router"] = {
            name: value
            for name, value in out.get("router", {}).items()
            if not isinstance(value, float)
        }
        return status, {"router": found}

    def layer_route(self, call: Any, out: Any) -> Any:
        capturer, given = self.capturer(call), call["logits"]
        method, keywords = self.router_of(call["router"])
        rows = given.get("rows", 0)
        if "hash_table" in call["router"]:
            keywords["hash_table"] = array(call["router"]["hash_table"], np.int32).reshape(
                -1, capturer.k
            )
        weights = None
        if given.get("weights"):
            stride = given.get("weights_stride") or capturer.k
            weights = np.full(rows * stride, FILL, np.float32)
            self.buffers = {"weights": weights}
        struct = self.raw_logits(given, capturer, weights)
        expressible = struct is None
        if not expressible:
            router = routecap.Router(method, **keywords)
            fields = dict(router._fields)
            if "bias" in call["router"]:
                fields.update(
                    bias=describe(keywords["bias"], "bias").address,
                    bias_dtype=call["router"]["bias_dtype"],
                )
            if "hash_table" in call["router"]:
                fields.update(
                    hash_table=describe(keywords["hash_table"], "hash_table").address,
                    hash_tokens=len(keywords["hash_table"]),
                )
            if "bias_dtype" in call["router"]:
                fields["bias_dtype"] = call["router"]["bias_dtype"]
            status = raw.routecap_layer_route(
                capturer._handle, call["layer"], structs.router(**fields), struct, 0
            )
            return status, {"weights": weights}
        router = routecap.Router(method, **keywords)
        options: dict[str, Any] = {
            "experts": given.get("experts") or None,
            "first_row": given.get("first_row", 0),
        }
        for name in ("live_rows", "row_base"):
            if name in given:
                options[name] = np.array([given[name]], np.int32)
        if "row_index" in given:
            options["row_index"] = array(given["row_index"], np.int32)
        if "tokens" in given:
            options["tokens"] = array(given["tokens"], TYPES[given["tokens_dtype"]])
        if weights is not None:
            options["weights"] = weights.reshape(rows, -1)[:, : capturer.k]
        logits = None
        if "logits" in given:
            elements = array(given["logits"], TYPES[given["dtype"]])[given.get("logits_start", 0) :]
            columns = given.get("experts") or self.layer_experts(capturer, call["layer"])
            row, column = given.get("row_stride") or columns, given.get("column_stride") or 1
            size = elements.dtype.itemsize
            logits = as_strided(elements, (rows, columns), (row * size, column * size))
            if given["dtype"] != 16:
                options["dtype"] = given["dtype"]
        else:
            options["rows"] = rows
        capturer.route(call["layer"], router, logits, **options)
        return 0, {"weights": weights}

    @staticmethod
    def layer_experts(capturer: Any, layer: int) -> int:
        return int(capturer.layer_experts[layer]) if layer < capturer.layers else capturer.experts

    def raw_logits(self, given: Any, capturer: Any, weights: Any) -> Any:
        """The struct, if the package would not let it through."""
        known = given.get("dtype") in (16, 17, 18) and given.get("tokens_dtype", 4) in (4, 6)
        strided = given.get("weights_stride", capturer.k) >= capturer.k or not given.get(
            "weights_stride"
        )
        enough = len(given.get("tokens", [])) >= given.get("rows", 0) or "tokens" not in given
        if known and strided and enough and given.get("rows", 0) and not self.raw:
            return None
        address = 0 if weights is None else describe(weights, "weights").address
        return self.struct("logits", given, weights=address)

    def capturer_probe(self, call: Any, out: Any) -> Any:
        found = self.capturer(call).probe(call["rows"], call["count"])
        return routecap.Status.PARTIAL if found["found"].any() else 0, {"layers": records(found)}

    # ---- Steps

    def step_issue(self, call: Any, out: Any) -> Any:
        capturer = self.capturer(call)
        spans = routecap.spans(len(call["spans"]))
        spans["rows"] = 0
        for entry, span in zip(spans, call["spans"]):
            for name, value in span.items():
                entry[name] = self.handle(value) if name == "request" else number(value)
        options = call.get("options", {})
        status = np.full(len(spans), FILL, np.int32)
        keywords: dict[str, Any] = {
            "tag": number(options.get("tag", 0)),
            "snapshot": options.get("snapshot", 0),
            "status": status,
        }
        kind = options.get("positions_dtype", 0)
        if "positions" in options and kind in (4, 6):
            keywords["positions"] = array(options["positions"], TYPES[kind])
        elif kind or options.get("reserved") or options.get("snapshot", 0) not in (0, 1, 2):
            struct = self.struct("issue_options", options)
            found, ticket = raw.routecap_step_issue(capturer._handle, spans, struct, status, 0)
            return found, {"status": [name_of(each) for each in status], "step": ticket}
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            step = capturer.issue(spans, **keywords)
        if keywords["snapshot"] == routecap.Snapshot.LATER and "positions" in keywords:
            # The capturer alone keeps them alive.
            self.positions[call["capturer"], int(step)] = weakref.ref(keywords.pop("positions"))
        first = step.status == routecap.Status.LOST and capturer not in self.lossy
        assert [each.category for each in seen] == [routecap.LostStepWarning] * first
        if first:
            self.lossy.add(capturer)
        return step.status, {"status": [name_of(each) for each in status], "step": step.ticket}

    def step_arrive(self, call: Any, out: Any) -> Any:
        capturer, step = self.capturer(call), number(call["step"])
        if "positions" in call:
            positions = self.positions.pop((call["capturer"], step))()
            positions[:] = array(call["positions"], positions.dtype)
        if "rows" not in call:
            capturer.arrive(capturer.issued(step), None)
            return 0, {}
        if "weights" in call["rows"]:
            struct = self.struct("sink", call["rows"])
            return raw.routecap_step_arrive(capturer._handle, step, struct), {}
        sink = {name: number(value) for name, value in call["rows"].items() if name != "ids"}
        start, rows, k = sink.pop("ids_start", 0), sink["rows"], sink["k"]
        ids = array(call["rows"]["ids"], TYPES.get(sink["dtype"], np.int32))[start:]
        row_stride = sink.get("row_stride") or k
        layer_stride = sink.get("layer_stride") or max(rows * row_stride, k)
        if min(row_stride, layer_stride) < k or sink["dtype"] not in TYPES:
            struct = self.struct("sink", call["rows"])
            return raw.routecap_step_arrive(capturer._handle, step, struct), {}
        shape, size = (capturer.layers or 1, rows, k), ids.itemsize
        reach = (shape[0] - 1) * layer_stride + max(rows - 1, 0) * row_stride + k
        assert rows == 0 or reach <= len(ids)
        strides = (layer_stride * size, row_stride * size, size)
        capturer.arrive(capturer.issued(step), as_strided(ids, shape, strides))
        return 0, {}

    def step_poll(self, call: Any, out: Any) -> Any:
        return self.capturer(call).issued(number(call["step"])).poll(), {}

    def step_finalize(self, call: Any, out: Any) -> Any:
        step = self.capturer(call).issued(number(call["step"]))
        timeout = self.seconds(call["timeout_ns"])
        status = step.wait(timeout)
        return status, (
            {"conflicting": step.conflicts(timeout)}
            if status != routecap.Status.PENDING
            else {"conflicting": 0}
        )

    @staticmethod
    def seconds(timeout_ns: Any) -> float | None:
        return None if number(timeout_ns) < 0 else number(timeout_ns) / 1e9

    # ---- Requests

    def request_open(self, call: Any, out: Any) -> Any:
        policy = call.get("options", {}).get("policy", 0)
        if call["count"] == 1:
            return 0, {"requests": [self.capturer(call).open(policy=policy)]}
        handles = self.capturer(call).open_batch(call["count"], policy=policy)
        return 0, {"requests": [self.capturer(call).request(int(handle)) for handle in handles]}

    def request_accept(self, call: Any, out: Any) -> Any:
        keep = array(call["rows"], np.uint32) if "rows" in call else number(call["count"])
        step = self.capturer(call).issued(number(call["step"]))
        self.request_of(call).accept(step, keep)
        return 0, {}

    def request_accept_batch(self, call: Any, out: Any) -> Any:
        items = np.zeros(len(call["items"]), routecap.accept_dtype)
        for entry, item in zip(items, call["items"]):
            entry["request"], entry["step"], entry["reserved"] = (
                self.handle(item["request"]),
                number(item["step"]),
                item.get("reserved", 0),
            )
            entry["count"] = len(item["rows"]) if "rows" in item else number(item.get("count", 0))
        paths = None
        if any("rows" in item for item in call["items"]):  # a count is the path 0, 1, ...
            paths = np.concatenate(
                [
                    (
                        array(item["rows"], np.uint32)
                        if "rows" in item
                        else np.arange(number(item.get("count", 0)), dtype=np.uint32)
                    )
                    for item in call["items"]
                ]
            )
        status = self.capturer(call).accept_batch(items, paths)
        return status, {"status": [name_of(each) for each in items["status"]]}

    @staticmethod
    def covered(coverage: Any, missing: Any, capacity: int) -> Any:
        status = routecap.Status.OK if coverage.complete else routecap.Status.INCOMPLETE
        return status, {"coverage": coverage._asdict(), "missing": records(missing[:capacity])}

    def request_coverage(self, call: Any, out: Any) -> Any:
        request, rows = self.request_of(call), (number(call["first"]), number(call["rows"]))
        return self.covered(
            request.coverage(*rows), request.missing(*rows), call.get("capacity", 0)
        )

    @staticmethod
    def flags(call: Any) -> dict[str, bool]:
        return {
            "strict": bool(call.get("flags", 0) & 1),
            "allow_recomputed": bool(call.get("flags", 0) & 2),
        }

    def request_extract(self, call: Any, out: Any) -> Any:
        capturer, request = self.capturer(call), self.request_of(call)
        if call.get("flags", 0) > 3:
            return (
                raw.routecap_request_extract(
                    capturer._handle,
                    int(request),
                    call["first"],
                    number(call["rows"]),
                    call["mode"],
                    call["flags"],
                )[0],
                {},
            )
        routing = request.extract(
            number(call["first"]),
            number(call["rows"]),
            mode=call["mode"],
            **self.flags(call),
        )
        return routing.status, {"routing": routing}

    def batch(self, call: Any, dtype: Any, function: Any) -> Any:
        items = np.zeros(len(call["items"]), dtype)
        for entry, item in zip(items, call["items"]):
            for name, value in item.items():
                entry[name] = self.handle(value) if name == "request" else number(value)
        routings = function(items)
        assert (items["status"] == routings.statuses).all() and not items["routing"].any()
        found: list[Any] = []
        for i in range(len(routings)):
            try:
                found.append(routings[i])
            except routecap.Error as error:
                assert error.status == routings.statuses[i]
                found.append(None)
        return routings.status, {
            "status": [name_of(each) for each in routings.statuses],
            "routings": found,
        }

    def request_extract_batch(self, call: Any, out: Any) -> Any:
        return self.batch(call, routecap.extract_dtype, self.capturer(call).extract_batch)

    def request_finish_batch(self, call: Any, out: Any) -> Any:
        return self.batch(call, routecap.finish_dtype, self.capturer(call).finish_batch)

    def request_close_batch(self, call: Any, out: Any) -> Any:
        handles = np.array([self.handle(request) for request in call["requests"]], np.uint64)
        status = np.full(len(handles), FILL, np.int32)
        return self.capturer(call).close_batch(handles, status), {
            "status": [name_of(each) for each in status]
        }

    # ---- Copies

    def copy_options_init(self, call: Any, out: Any) -> Any:
        memory = structs.copy_options.empty()
        status = raw.routecap_copy_options_init(memory, structs.copy_options.size)
        return status, {
            "options": dict(zip(structs.copy_options.fields, structs.copy_options.read(memory)))
        }

    def copy(
        self, call: Any, k: int, all_layers: int, rows: int, packaged: Any, generated: Any
    ) -> Any:
        """Through the package into an array, if dst has the size and options are such that there is
        one; otherwise through the generated module.
        """
        options = {name: number(value) for name, value in call["options"].items()}
        options.setdefault("fill", -1)
        options.setdefault("none", routecap.NO_EXPERT)
        dtype = TYPES.get(options.get("dtype", 0), np.uint8)
        size = np.dtype(dtype).itemsize
        dst = None
        if "dst_bytes" in call:
            dst = np.full(-(-call["dst_bytes"] // size), FILL, dtype)
        mask = np.full(call["mask_bytes"], FILL, np.uint8) if "mask_bytes" in call else None
        self.buffers = {"dst": [] if dst is None else dst, "mask": mask}
        first, order = options.get("first_layer", 0), options.get("order", 0)
        layers = options.get("layers") or all_layers - first
        shape = (rows, layers) if order == 0 else (layers, rows)
        row_stride = options.get("row_stride") or (layers * k if order == 0 else k)
        layer_stride = options.get("layer_stride") or (k if order == 0 else rows * k)
        needed = (
            ((rows - 1) * row_stride + (layers - 1) * layer_stride + k) * size
            if rows > 0 and layers > 0
            else 0
        )
        fits = (
            dst is not None
            and call["dst_bytes"] >= needed
            and min(rows, layers, row_stride, layer_stride) > 0
            and order in (0, 1)
        )
        fits = (
            fits
            and options["dtype"] in (1, 2, 3, 4, 5, 6)
            and first + layers <= all_layers
            and options.get("flags", 0) < 4
        )
        fits = fits and (mask is None or len(mask) >= rows * layers)
        if not fits:
            view = None if dst is None else memoryview(dst).cast("B")[: call["dst_bytes"]]
            status, found = generated(structs.copy_options(**options), view, mask)
            return status, {**self.buffers, "needed": found}
        strides = (
            (row_stride * size, layer_stride * size)
            if order == 0
            else (layer_stride * size, row_stride * size)
        )
        target = as_strided(dst, (*shape, k), (*strides, size))
        cells = None if mask is None else mask[: rows * layers].reshape(shape)
        status = packaged(
            target,
            mask=cells,
            fill=options["fill"],
            none=options["none"],
            order=order,
            first_layer=first,
            layers=layers,
            strict=bool(options.get("flags", 0) & 1),
            allow_recomputed=bool(options.get("flags", 0) & 2),
        )
        return status, {**self.buffers, "needed": needed}

    def request_extract_into(self, call: Any, out: Any) -> Any:
        capturer, request = self.capturer(call), self.request_of(call)
        first, rows = number(call["first"]), number(call["rows"])
        count = rows
        if rows in (routecap.ALL, routecap.LANDED):
            try:
                coverage = request.coverage(first, rows)
                count = coverage.rows
            except routecap.Error:
                count = 0
        return self.copy(
            call,
            capturer.k,
            capturer.layers,
            count,
            lambda target, **options: request.extract_into(target, first, rows, **options),
            lambda options, dst, mask: raw.routecap_request_extract_into(
                capturer._handle, int(request), first, rows, options, dst, mask
            ),
        )

    def routing_copy_to(self, call: Any, out: Any) -> Any:
        routing = self.names[call["routing"]]
        if not routing.ready:
            routing.copy_to(np.zeros((0, 0, 1), np.int32))
        return self.copy(
            call,
            routing.k,
            routing.layers,
            routing.rows,
            routing.copy_to,
            lambda options, dst, mask: raw.routecap_routing_copy_to(
                routing._handle, options, dst, mask
            ),
        )

    def routing_copy_weights(self, call: Any, out: Any) -> Any:
        routing = self.names[call["routing"]]
        options = {name: number(value) for name, value in call["options"].items()}
        kind = options.get("dtype", 0)
        dtype = np.float32 if kind == 16 else np.uint16
        dst = np.full(-(-call["dst_bytes"] // np.dtype(dtype).itemsize), FILL, dtype)
        mask = np.full(call["mask_bytes"], FILL, np.uint8) if "mask_bytes" in call else None
        status, needed = raw.routecap_routing_copy_weights(
            routing._handle,
            structs.copy_options(**options),
            memoryview(dst).cast("B")[: call["dst_bytes"]],
            mask,
        )
        if "dst" in out:
            same_weights(dst.tolist(), out.pop("dst"), kind, "dst")
        return status, {"mask": mask, "needed": needed}

    # ---- Routings

    def routing_wait(self, call: Any, out: Any) -> Any:
        return self.names[call["routing"]].wait(self.seconds(call["timeout_ns"])), {}

    def routing_poll(self, call: Any, out: Any) -> Any:
        return self.names[call["routing"]].status, {}

    def routing_retain(self, call: Any, out: Any) -> Any:
        return 0, {"routing": copy.copy(self.names[call["routing"]])}

    def routing_view(self, call: Any, out: Any) -> Any:
        routing = self.names[call["routing"]]
        row = routing.first
        valid, tags = (
            np.zeros((routing.rows, routing.layers), bool),
            np.zeros(routing.rows, np.uint64),
        )
        ids = np.full((routing.rows, routing.layers, routing.k), -1, np.int64)
        kind = int(routing.weights_dtype or 0)
        weighted = np.zeros(valid.shape, bool)
        weights = np.zeros(ids.shape, np.float32 if kind == 16 else np.uint16)
        for segment in routing.segments:
            assert segment.first == row and segment.rows > 0
            here = slice(row - routing.first, row - routing.first + segment.rows)
            row += segment.rows
            if segment.ids is not None:
                bits = (
                    np.unpackbits(segment.validity, axis=1, bitorder="little")[:, : routing.layers]
                    if segment.validity is not None
                    else 1
                )
                valid[here] = bits
                ids[here] = np.where(valid[here][..., None], segment.ids.astype(np.int64), -1)
                unused = np.arange(routing.k) >= routing.counts()[here][..., None]
                every_bit = np.ascontiguousarray(segment.ids).view(f"u{segment.ids.itemsize}")
                unused &= valid[here][..., None]
                assert (every_bit[unused] == np.iinfo(every_bit.dtype).max).all()
                ids[here][unused] = routecap.NO_EXPERT
                tags[here] = np.where(
                    valid[here].any(axis=1),
                    segment.tags if segment.tags is not None else segment.tag,
                    0,
                )
            if segment.weights is not None:
                bits = np.unpackbits(segment.weights_validity, axis=1, bitorder="little")
                weighted[here] = bits[:, : routing.layers]
                kept = np.ascontiguousarray(segment.weights)
                if routing.weights_dtype != routecap.Dtype.F32:
                    kept = kept.view(np.uint16)
                assert not kept[~weighted[here]].view(np.uint8).any()
                weights[here] = kept
        assert row == routing.first + routing.rows
        reasons = np.zeros((routing.rows, routing.layers), np.uint8)
        for first, rows, layer, layers, reason, _ in routing.missing.tolist():
            reasons[first - routing.first :][:rows, layer : layer + layers] = reason
        assert (reasons == routing.reasons()).all()
        assert (valid == routing.mask()).all() and (
            valid.T == routing.mask(order="layer_major")
        ).all()
        assert (ids == routing.ids(np.int64)).all() and (
            np.where(valid.any(axis=1), routing.tags, 0) == tags
        ).all()
        if "weights" in out.get("view", {}):
            same_weights(weights.ravel().tolist(), out["view"].pop("weights"), kind, "weights")
        view = {
            "weights_dtype": kind,
            "weighted": weighted.ravel().tolist(),
            "dtype": {np.dtype(np.uint8): 1, np.dtype(np.int16): 2}[routing.dtype],
            "validity_bytes": (routing.layers + 7) // 8,
            "complete": routing.complete,
            "ids": ids.ravel().tolist(),
            "valid": valid.ravel().tolist(),
            "tags": tags.tolist(),
            "segment_count": len(routing.segments),
            **{
                name: getattr(routing, name)
                for name in ("layers", "k", "experts", "id_space", "first", "rows")
            },
            **{name: getattr(routing, name).tolist() for name in LAYERS},
        }
        return 0, {"view": view}

    def routing_coverage(self, call: Any, out: Any) -> Any:
        routing = self.names[call["routing"]]
        return self.covered(routing.coverage(), routing.missing, call.get("capacity", 0))

    def routing_merge(self, call: Any, out: Any) -> Any:
        merged = routecap.merge([self.names[name] for name in call["routings"]])
        return merged.status, {"merged": merged}

    # ---- Serialised

    def routing_serialize(self, call: Any, out: Any) -> Any:
        routing = self.names[call["routing"]]
        if "dst_bytes" in call:
            dst = bytearray([FILL] * call["dst_bytes"])
            written = routing.serialize_into(dst)
            content = bytes(dst[:written])
        else:
            content = routing.serialize()
            written = routing.serialized_bytes
        if "dst" in out:
            assert content == pieces_of(out.pop("dst"))
        return 0, {"needed": written}

    def routing_deserialize(self, call: Any, out: Any) -> Any:
        content = self.lend(np.frombuffer(pieces_of(call["data"]), np.uint8))
        if call.get("flags", 0) > 1:
            return raw.routecap_routing_deserialize(content, call["flags"], None)[0], {}
        routing = routecap.Routing.deserialize(
            content, trusted=call.get("flags", 0) == 1, copy=not call.get("lent")
        )
        return routing.status, {"routing": routing}

    def routing_import(self, call: Any, out: Any) -> Any:
        view = call["view"]
        layers, k = number(view["layers"]), number(view["k"])
        dtype = TYPES.get(view.get("dtype", 0))
        width = (layers + 7) // 8
        tables = {name: [number(each) for each in view[name]] for name in LAYERS if name in view}
        segments = []
        try:
            if (
                view.get("weights_dtype")
                or any("weights" in segment for segment in view.get("segments", []))
                or view.get("dtype") not in (1, 2)
                or view.get("validity_bytes") not in (None, 0, width)
                or call.get("flags", 0) > 1
            ):
                raise LookupError
            if not all(len(table) == layers for table in tables.values()):
                raise LookupError
            for segment in view.get("segments", []):
                if "reserved" in segment:
                    raise LookupError
                rows = number(segment.get("rows", 0))
                shapes = {"ids": (rows, layers, k), "validity": (rows, width), "tags": (rows,)}
                kinds = {"ids": dtype, "validity": np.uint8, "tags": np.uint64}
                arrays = {}
                for name, shape in shapes.items():
                    if segment.get(name) is None:
                        arrays[name] = None
                        continue
                    elements = array(segment[name], kinds[name])
                    if elements.size != np.prod(shape):
                        raise LookupError
                    arrays[name] = self.lend(elements.reshape(shape))
                segments.append(
                    routecap.Segment(
                        number(segment.get("first", 0)),
                        rows,
                        **arrays,
                        tag=number(segment.get("tag", 0)),
                        reason=segment.get("reason", 0),
                    )
                )
        except LookupError:
            return self.raw_import(call, view)
        routing = routecap.Routing.from_segments(
            segments,
            layers=layers,
            k=k,
            rows=number(view.get("rows", 0)),
            first=number(view.get("first", 0)),
            dtype=dtype,
            experts=view.get("experts"),
            id_space=view.get("id_space", 0),
            trusted=call.get("flags", 0) == 1,
            copy=not call.get("lent"),
            **tables,
        )
        return routing.status, {"routing": routing}

    def raw_import(self, call: Any, view: Any) -> Any:
        given = view.get("segments", [])
        segments = np.zeros(len(given), structs.segment_dtype)
        for entry, segment in zip(segments, given):
            self.enter(entry, segment, view)
        usual = {"segment_count": len(given), "segment_size": segments.itemsize}
        address = describe(segments, "segments").address if given else 0
        struct = self.struct("view", usual | view, segments=address)
        held = tuple(self.held) if call.get("lent") else None
        status, made = raw.routecap_routing_import(struct, call.get("flags", 0), held)
        return status, {"routing": routecap.Routing._of(made)}

    def serialized_info(self, call: Any, out: Any) -> Any:
        info = routecap.serialized_info(pieces_of(call["data"]))._asdict()
        info["dtype"] = {np.dtype(np.uint8): 1, np.dtype(np.int16): 2}[info["dtype"]]
        info["weights_dtype"] = int(info["weights_dtype"] or 0)
        return 0, {"info": info}

    def serialized_splice(self, call: Any, out: Any) -> Any:
        head, tail, row = pieces_of(call["head"]), pieces_of(call["tail"]), number(call["row"])
        content = routecap.splice(head, tail, row)
        header, pieces = (
            bytearray(len(head) + len(tail) + 128),
            np.zeros(routecap.MAX_PIECES, structs.piece_dtype),
        )
        memory = structs.splice.empty()
        raw.routecap_serialized_splice(head, tail, row, header, pieces, memory)
        splice = dict(zip(structs.splice.fields, structs.splice.read(memory)))
        assert len(content) == splice["bytes"]
        return 0, {"splice": splice, "routing": routecap.Routing.deserialize(content)}

    # ---- Sequences

    def sequence_create(self, call: Any, out: Any) -> Any:
        config = {
            name: value if isinstance(value, list) else number(value)
            for name, value in call["config"].items()
        }
        if "weights_dtype" in config:
            config["weights"] = config.pop("weights_dtype")
        return 0, {"sequence": routecap.Sequence(**config)}

    def sequence_append(self, call: Any, out: Any) -> Any:
        options = {name: number(value) for name, value in call.get("options", {}).items()}
        routing = self.names[call["routing"]] if "routing" in call else None
        report = self.names[call["sequence"]].append(
            call["tokens"], routing, token_start=number(call.get("token_start", 0)), **options
        )
        return 0 if report.complete else 1, {"report": self.report(report)}

    def report(self, report: routecap.AppendReport) -> Any:
        return report._asdict() | (
            {"first_differed": routecap.ALL} if report.first_differed is None else {}
        )

    def sequence_fork(self, call: Any, out: Any) -> Any:
        tokens = number(call["tokens"])
        return 0, {
            "child": self.names[call["sequence"]].fork(None if tokens == routecap.ALL else tokens)
        }

    def sequence_routing(self, call: Any, out: Any) -> Any:
        routing = self.names[call["sequence"]].routing()
        return routing.status, {"routing": routing}

    def sequence_spans(self, call: Any, out: Any) -> Any:
        spans = self.names[call["sequence"]].spans()
        return 0, {
            "spans": [span._asdict() for span in spans[: call["capacity"]]],
            "count": len(spans),
        }

    def sequence_tokens(self, call: Any, out: Any) -> Any:
        sequence, first = self.names[call["sequence"]], call["first"]
        if first > len(sequence):
            return raw.routecap_sequence_tokens(sequence._handle, first, None)[0], {}
        tokens = sequence.tokens[first:]
        return 0, {"tokens": tokens[: call["capacity"]].tolist(), "count": len(tokens)}

    def sequence_report(self, call: Any, out: Any) -> Any:
        return 0, {"report": self.report(self.names[call["sequence"]].report())}

    def sequence_serialize(self, call: Any, out: Any) -> Any:
        content = self.names[call["sequence"]].serialize(tokens=call.get("flags", 0) == 1)
        assert content == pieces_of(out.pop("dst", content.hex()))
        return 0, {"needed": len(content)}

    def sequence_deserialize(self, call: Any, out: Any) -> Any:
        return 0, {"sequence": routecap.Sequence.deserialize(pieces_of(call["data"]))}

    # ---- Stores

    def keys(self, value: Any, store: routecap.Store) -> list[bytes]:
        whole, size = data(value), store.key_bytes
        return [whole[i : i + size] for i in range(0, len(whole), size)]

    def prefix(self, call: Any, store: routecap.Store) -> Any:
        request = self.request(call["request"])
        return request, number(call["first"]), self.keys(call["keys"], store)

    def store_config_init(self, call: Any, out: Any) -> Any:
        memory = structs.store_config.empty()
        status = raw.routecap_store_config_init(memory, structs.store_config.size)
        fields = structs.store_config.fields
        return status, {"config": dict(zip(fields, structs.store_config.read(memory)))}

    def store_create(self, call: Any, out: Any) -> Any:
        settings = {name: number(value) for name, value in call["config"].items()}
        settings["slot_keys"] = bool(settings.pop("flags", 0))
        of = {
            name.replace("weights_dtype", "weights"): value
            for name, value in call["shape"].items()
            if name not in ("backend", "rows")
        }
        return 0, {"store": routecap.Store(**settings, **of)}

    def store_contains(self, call: Any, out: Any) -> Any:
        store, generation = self.names[call["store"]], number(call["generation"])
        keys = self.keys(call["keys"], store)
        reasons = store.reasons(keys, generation=generation)
        return 0, {"reasons": reasons, "leading": store.leading(keys, generation=generation)}

    def key_chain(self, call: Any, out: Any) -> Any:
        made = routecap.key_chain(
            call["tokens"],
            call["block_rows"],
            seed=data(call["seed"]),
            key_bytes=call["key_bytes"],
        )
        assert made.tobytes() == pieces_of(out.pop("keys"))
        return 0, {}

    def request_publish_batch(self, call: Any, out: Any) -> Any:
        store = self.names[call["store"]]
        items = [self.prefix(item, store) for item in call["items"]]
        generation = number(call["generation"])
        statuses = self.capturer(call).publish_batch(store, items, generation=generation)
        return routecap.Status.PARTIAL if statuses.any() else 0, {
            "status": list(map(name_of, statuses))
        }

    def request_adopt_batch(self, call: Any, out: Any) -> Any:
        store = self.names[call["store"]]
        items = [self.prefix(item, store) for item in call["items"]]
        generation = number(call["generation"])
        found = self.capturer(call).adopt_batch(store, items, generation=generation)
        return routecap.Status.PARTIAL if found["status"].any() else 0, {
            "status": list(map(name_of, found["status"])),
            "adoptions": records(found),
        }


@pytest.mark.parametrize("vector", load())
def test_a_vector_gives_what_the_model_says(vector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(
        "ROUTECAP_CHECKED", raising=False
    )  # vectors say what becomes of forgiven slips
    replayer = Replayer()
    try:
        replayer.run(copy.deepcopy(vector))
    finally:
        replayer.finish()


def test_there_are_vectors_to_replay() -> None:
    assert len(load()) >= 200
