"""The calls of the vectors, by their C names, on the model: what each returns and delivers."""

from . import capturer as c
from . import routing as r
from . import sequence as q
from . import serialized, recording
from . import store as t
from .routing import Failure, Layer, check

HOST, CUDA = 1, 2
MIRROR, DISABLED = 1, 2
MAX_ROWS, MAX_SLOTS = 1048576, 64
READING = (
    "request_coverage",
    "request_extract",
    "request_extract_batch",
    "request_extract_into",
    "request_finish",
    "request_finish_batch",
)
FORWARD = ("sink_bind", "sink_layer", "sink_write", "layer_record", "layers_record", "layer_route", "received_read", "capturer_probe",
           "step_begin", "step_snapshot")  # fmt: skip
SINK_DTYPES = (r.I16, r.I32, r.I64)
POSITIVE = ("OK", "INCOMPLETE", "LOST", "PENDING", "PARTIAL", "NOT_CAPTURED")


class World:
    """Everything that is alive in one vector."""

    def __init__(self, header):
        self.header = header  # names and numbers of the header
        self.named = {}
        self.counts = {}

    def call(self, name, arguments):
        """Returns the status (None if C returns none) and the outputs."""
        capturer = self.named.get(arguments.get("capturer"))
        try:
            if capturer is not None and capturer.config.get("role") == DISABLED:
                return self.off(name, arguments, capturer, [])
            if capturer is not None and capturer.mirror and name not in FORWARD:
                return self.off(name, arguments, capturer, capturer.layers)
            status, out = getattr(self, name)(**arguments)
        except Failure as failure:
            status, out = failure.status, failure.out
        return status and "ROUTECAP_" + status, out

    def off(self, name, arguments, capturer, layers):
        """A capturer that captures nothing."""
        if name == "capturer_destroy":
            del self.named[arguments["capturer"]]
            return None, {}
        if name in READING:
            return "ROUTECAP_ERR_DISABLED", {}
        absent = dict.fromkeys(("rows", "found", "evicted", "not_published", "stale"), 0)
        nothing = {
            "request_adopt": lambda: {"adoption": absent},
            "request_open": lambda: {"requests": [0] * arguments["count"]}, "request_fork": lambda: {"child": 0}, "step_issue": lambda: {"step": 0},
            "capturer_stats": lambda: {"stats": {name: 0 for name in c.Capturer(capturer.config, layers).stats()}},
        }  # fmt: skip
        return "ROUTECAP_OK", nothing.get(name, dict)()

    def name(self, kind, thing):
        """Names a new handle."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        name = f"{kind}{self.counts[kind]}"
        self.named[name] = thing
        return name

    def request(self, capturer, name):
        request = self.named.get(name)
        return request if request in self.named[capturer].open else None

    def known(self, capturer, name):
        request = self.request(capturer, name)
        check(request is not None, "ERR_UNKNOWN_REQUEST")
        return request

    # ---- The library

    def version(self):
        return None, {
            "version": (
                self.header["VERSION_MAJOR"] * 10000
                + self.header["VERSION_MINOR"] * 100
                + self.header["VERSION_PATCH"]
            )
        }

    def get_api(self, major, minor):
        return None, {
            "available": int(
                major == self.header["VERSION_MAJOR"] and minor <= self.header["VERSION_MINOR"]
            )
        }

    def status_name(self, status):
        names = {
            number: "ROUTECAP_" + name
            for name, number in self.header.items()
            if name in POSITIVE or name.startswith("ERR_")
        }
        return None, {"name": names.get(status, "ROUTECAP_STATUS_UNKNOWN")}

    def backend_info(self, backend):
        known = {} if backend == CUDA else {"available": int(backend == HOST), "devices": 0}
        return "OK", {"info": known | {"reserved": 0}}

    # ---- Configuration and capturer

    def config_init(self):
        return "OK", {"config": {"role": 0, "layers": 0, "k": 0, "experts": 0, "rows": 0, "id_space": 0, "reserved": 0, "layer_map": None,
                                 "layer_experts": None, "layer_provenance": None}}  # fmt: skip

    def shape(self, config):
        def get(name):
            return config.get(name) or 0

        check(get("backend") > 0)
        check(get("backend") in (HOST, CUDA), "ERR_NO_BACKEND")
        check(
            get("role") in (0, 1, 2)
            and get("id_space") in (0, 1)
            and get("flags") & ~sum(r.CONFIG.values()) == 0
            and get("flags") & (c.LOAD | c.LOAD_TAGS) != c.LOAD_TAGS
            and get("reserved") == 0
        )
        check(
            1 <= get("layers") <= r.MAX_LAYERS
            and 1 <= get("k") <= r.MAX_K
            and 1 <= get("rows") <= MAX_ROWS
            and get("slots") <= MAX_SLOTS
        )
        check(get("sink_dtype") in (0, *SINK_DTYPES))
        experts = config.get("layer_experts") or [get("experts")] * get("layers")
        check(all(get("k") <= e <= r.MAX_EXPERTS for e in experts))
        order = config.get("layer_map") or list(range(get("layers")))
        check(order[0] >= 0 and all(a < b for a, b in zip(order, order[1:])))
        provenance = config.get("layer_provenance") or [0] * get("layers")
        check(all(p in (0, 1) for p in provenance))
        return [Layer(*layer) for layer in zip(order, experts, provenance)]

    def config_memory(self, config):
        layers = self.shape(config)
        width = 1 if max(layer.experts for layer in layers) <= 256 else 2
        return "OK", {
            "memory": {
                "device_bytes": 0,
                "pinned_bytes": 0,
                "row_bytes": len(layers) * config["k"] * width + (len(layers) + 7) // 8,
            }
        }

    def capturer_create(self, config, budget_pages=None):
        if config.get("role") == DISABLED:
            return "OK", {"capturer": self.name("c", c.Capturer({"k": 0, "rows": 0} | config, []))}
        layers = self.shape(config)
        return "OK", {"capturer": self.name("c", c.Capturer(config, layers, budget_pages))}

    def capturer_destroy(self, capturer):
        if capturer is not None:
            self.named.pop(capturer).progress()
        return None, {}

    def capturer_stats(self, capturer):
        return "OK", {"stats": self.named[capturer].stats()}

    def capturer_layer_stats(self, capturer, count):
        stats = self.named[capturer].layer_stats
        check(count <= len(stats), "ERR_UNKNOWN_LAYER")
        return "OK", {"stats": [dict(layer) for layer in stats[:count]]}

    def counting(self, capturer, flag):
        capturer = self.named[capturer]
        counts = capturer.layers and not capturer.mirror
        check(not counts or capturer.flags & flag)
        return capturer, counts

    def capturer_load(self, capturer, tag=None):
        capturer, counts = self.counting(capturer, c.LOAD if tag is None else c.LOAD_TAGS)
        if not counts:
            return "OK", {
                "load": dict.fromkeys(
                    (
                        "layers",
                        "experts",
                        "steps",
                        "first_step",
                        "last_step",
                        "rows_prefill",
                        "rows_decode",
                    ),
                    0,
                )
            }
        check(tag is None or tag in capturer.tag_loads, "ERR_OUT_OF_RANGE")
        load = capturer.load if tag is None else capturer.tag_loads[tag]
        of = {
            "layers": len(capturer.layers),
            "experts": load.experts,
            "steps": load.steps,
            "first_step": load.first_step,
        }
        of |= {
            "last_step": load.last_step,
            "rows_prefill": load.rows[c.PREFILL],
            "rows_decode": load.rows[c.DECODE],
        }
        return "OK", {
            "load": of,
            "counts": [n for phase in load.counts for layer in phase for n in layer],
        }

    def capturer_load_tags(self, capturer):
        capturer, counts = self.counting(capturer, c.LOAD_TAGS)
        return "OK", {"tags": list(capturer.tag_loads) if counts else []}

    def capturer_progress(self, capturer):
        self.named[capturer].progress()
        return "OK", {}

    # ---- Sink and recording

    def sink_bind(self, capturer, first_layer, layers, sink):
        capturer = self.named[capturer]
        check(layers > 0 and first_layer + layers <= len(capturer.layers), "ERR_UNKNOWN_LAYER")
        check(sink["dtype"] in SINK_DTYPES, "ERR_DTYPE")
        check(sink["ids"] is not None)
        row_stride = sink.get("row_stride", 0) or sink["k"]
        layer_stride = sink.get("layer_stride", 0) or sink["rows"] * row_stride
        check(
            sink["k"] == capturer.k and sink["rows"] >= capturer.rows and row_stride >= sink["k"],
            "ERR_SHAPE_MISMATCH",
        )
        check(
            layers == 1 or layer_stride >= (capturer.rows - 1) * row_stride + sink["k"],
            "ERR_SHAPE_MISMATCH",
        )
        bound = {}
        for i in range(layers):
            ids = sink["ids"] | {"start": sink["ids"].get("start", 0) + i * layer_stride}
            new = {
                "dtype": sink["dtype"],
                "ids": ids,
                "rows": sink["rows"],
                "k": sink["k"],
                "row_stride": row_stride,
            }
            check(
                capturer.bound[first_layer + i] == new or not capturer.fixed[first_layer + i],
                "ERR_STATE",
            )
            bound[first_layer + i] = new
        for layer, new in bound.items():
            capturer.bound[layer], capturer.fixed[layer] = new, True
        return "OK", {}

    def sink_layer(self, capturer, layer):
        capturer = self.named[capturer]
        check(layer < len(capturer.layers), "ERR_UNKNOWN_LAYER")
        bound = capturer.bound[layer]
        if bound is None:
            return "OK", {"sink": {"ids": None}}
        capturer.fixed[layer] = True
        if bound is c.LIBRARY:
            own = {
                "dtype": capturer.config.get("sink_dtype", 0) or r.I16,
                "ids": True,
                "rows": capturer.rows,
                "k": capturer.k,
            }
            return "OK", {"sink": own}
        ids = {"memory": bound["ids"]["memory"], "start": bound["ids"]["start"]}
        return "OK", {
            "sink": {
                "dtype": bound["dtype"],
                "ids": ids,
                "k": bound["k"],
                "row_stride": bound["row_stride"],
            }
        }

    def sink_write(self, capturer, layer, first_row, ids):
        capturer = self.named[capturer]
        capturer.fixed[layer] = True
        capturer.write(layer, first_row, ids)
        return None, {}

    def writable(self, capturer, layer):
        check(layer < len(capturer.layers), "ERR_UNKNOWN_LAYER")
        check(capturer.bound[layer] is not None, "ERR_STATE")

    def layer_record(self, capturer, layer, source):
        capturer = self.named[capturer]
        self.writable(capturer, layer)
        check(source.get("flags", 0) & ~1 == 0)
        capturer.record([(layer, source)])
        return "OK", {}

    def layers_record(self, capturer, source, layers):
        capturer = self.named[capturer]
        check(len({layer["layer"] for layer in layers}) == len(layers))
        for layer in layers:
            self.writable(capturer, layer["layer"])
        capturer.record([(layer["layer"], source | layer) for layer in layers])
        return "OK", {}

    def router_init(self, method):
        check(method in recording.METHODS)
        score, group_score, _ = recording.METHODS[method]
        return "OK", {
            "router": (
                {"score": score} | ({"group_score": group_score} if group_score is not None else {})
            )
        }

    def layer_route(self, capturer, layer, router, logits):
        capturer = self.named[capturer]
        self.writable(capturer, layer)
        check(capturer.layers[layer].provenance == r.RECOMPUTED, "ERR_STATE")
        chosen, weights = recording.route(capturer.layers[layer], capturer.k, router, logits)
        places = capturer.places(layer, logits)
        capturer.put(layer, logits, places, chosen)
        return "OK", {} if weights is None else {"weights": weights, "tolerance": 1e-5}

    def received_read(self, capturer, layer, received):
        capturer = self.named[capturer]
        check(layer < len(capturer.layers), "ERR_UNKNOWN_LAYER")
        out = recording.received(capturer.layers[layer], capturer.k, received)
        return "OK", {name: values for name, values in out.items() if received.get(name)}

    def received_merge(self, executed):
        return "OK", {"merged": recording.merge_received(executed)}

    def capturer_probe(self, capturer, rows, count):
        layers = self.named[capturer].probe(rows, count)
        return "PARTIAL" if any(layer["found"] for layer in layers) else "OK", {"layers": layers}

    # ---- Steps

    def step_begin(self, capturer, rows):
        self.named[capturer].begin(rows)
        self.named[capturer].fixed = [True] * len(self.named[capturer].layers)
        return "OK", {}

    def step_snapshot(self, capturer):
        self.named[capturer].take_snapshot()
        return "OK", {}

    def step_issue(self, capturer, spans, options=None):
        options, named = options or {}, self.named[capturer]
        taken = {}
        for span in spans:
            flags, first, rows = span.get("flags", 0), span.get("position", 0), span["rows"]
            device = flags & c.DEVICE_POSITIONS
            check(
                rows >= 1
                and flags & ~31 == 0
                and (flags & c.PHASES).bit_count() <= 1
                and span.get("reserved", 0) == 0
            )
            end = span.get("position_end", 0) if device else first + rows
            check(end <= r.MAX_POSITION and first < end)
            check(not device or options.get("positions") is not None)
            check(span.get("sink_row", 0) + rows <= named.rows, "ERR_CAPACITY")
            if flags & ~c.PHASES == 0:
                others = taken.setdefault(span["request"], [])
                check(not any(a < end and first < b for a, b in others), "ERR_OVERLAP")
                others.append((first, end))
        if options.get("positions") is not None:
            check(options["positions_dtype"] in (r.I32, r.I64), "ERR_DTYPE")
        check(options.get("snapshot", 0) in (0, 1) and options.get("reserved", 0) == 0)
        status, statuses, ticket = named.issue(
            [(self.request(capturer, span["request"]), span) for span in spans], options
        )
        return status, {"status": ["ROUTECAP_" + s for s in statuses], "step": ticket}

    def step_discard(self, capturer):
        self.named[capturer].discard()
        return "OK", {}

    def step_poll(self, capturer, step):
        return self.named[capturer].poll(step), {}

    def step_finalize(self, capturer, step, timeout_ns):
        capturer = self.named[capturer]
        capturer.poll(step)
        capturer.progress()
        return capturer.poll(step), {"conflicting": capturer.step_conflicts.get(step, 0)}

    # ---- Requests

    def room(self, capturer, count):
        limit = capturer.config.get("max_requests", 0) or 65536
        check(len(capturer.open) + count <= limit, "ERR_TOO_MANY_REQUESTS")

    def request_open(self, capturer, count, options=None):
        capturer = self.named[capturer]
        policy = (options or {}).get("policy", 0)
        check(policy in (0, 1))
        self.room(capturer, count)
        return "OK", {"requests": [self.name("r", capturer.open_one(policy)) for _ in range(count)]}

    def request_accept(self, capturer, request, step, rows=None, count=0):
        self.named[capturer].accept(self.known(capturer, request), step, rows, count)
        return "OK", {}

    def batch(self, capturer, items, one):
        statuses, made = [], []
        for item in items:
            try:
                status, routing = one(**item)
            except Failure as failure:
                status, routing = failure.status, None
            statuses.append("ROUTECAP_" + status)
            made.append(routing)
        return "OK" if set(statuses) <= {"ROUTECAP_OK"} else "PARTIAL", statuses, made

    def request_accept_batch(self, capturer, items):
        status, statuses, _ = self.batch(
            capturer, items, lambda **item: (self.request_accept(capturer, **item)[0], None)
        )
        return status, {"status": statuses}

    def request_truncate(self, capturer, request, rows):
        self.named[capturer].truncate(self.known(capturer, request), rows)
        return "OK", {}

    def request_fork(self, capturer, request, rows):
        parent = self.known(capturer, request)
        check(rows == r.ALL or rows <= parent.length(), "ERR_OUT_OF_RANGE")
        self.room(self.named[capturer], 1)
        return "OK", {"child": self.name("r", self.named[capturer].fork(parent, rows))}

    def request_attach(self, capturer, request, routing, rows):
        self.named[capturer].attach(self.known(capturer, request), self.named[routing], rows)
        return "OK", {}

    def request_coverage(self, capturer, request, first, rows, capacity):
        request = self.known(capturer, request)
        routing = self.named[capturer].read(request, first, rows)
        coverage, missing = routing.coverage(request.length(), capacity)
        return "INCOMPLETE" if coverage["cells_missing"] else "OK", {
            "coverage": coverage,
            "missing": missing,
        }

    def extract_one(self, capturer, request, first, rows, mode, flags):
        routing = self.named[capturer].extract(
            self.known(capturer, request), first, rows, mode, flags
        )
        return routing.status(), self.name("x", routing)

    def request_extract(self, capturer, **item):
        status, routing = self.extract_one(capturer, **item)
        return status, {"routing": routing}

    def request_extract_batch(self, capturer, items):
        status, statuses, routings = self.batch(
            capturer, items, lambda **item: self.extract_one(capturer, **item)
        )
        return status, {"status": statuses, "routings": routings}

    def copy_options_init(self):
        return "OK", {"options": dict(r.COPY_OPTIONS)}

    def copied(self, routing, options, dst_bytes, mask_bytes):
        status, dst, mask, needed = routing.copy(options, dst_bytes, mask_bytes)
        return status, {"dst": dst, "needed": needed} | ({"mask": mask} if mask is not None else {})

    def request_extract_into(
        self, capturer, request, first, rows, options, dst_bytes=None, mask_bytes=None
    ):
        routing = self.named[capturer].read(self.known(capturer, request), first, rows)
        return self.copied(routing, options, dst_bytes, mask_bytes)

    def finish_one(self, capturer, request, rows):
        return "OK", self.name(
            "x", self.named[capturer].finish(self.known(capturer, request), rows)
        )

    def request_finish(self, capturer, request, rows):
        status, routing = self.finish_one(capturer, request, rows)
        return status, {"routing": routing}

    def request_finish_batch(self, capturer, items):
        status, statuses, routings = self.batch(
            capturer, items, lambda **item: self.finish_one(capturer, **item)
        )
        return status, {"status": statuses, "routings": routings}

    def close_one(self, capturer, request):
        if request != 0:
            self.named[capturer].close(self.known(capturer, request))
        return "OK", None

    def request_close(self, capturer, request):
        return self.close_one(capturer, request)[0], {}

    def request_close_batch(self, capturer, requests):
        items = [{"request": request} for request in requests]
        status, statuses, _ = self.batch(
            capturer, items, lambda request: self.close_one(capturer, request)
        )
        return status, {"status": statuses}

    # ---- Routings

    def routing_wait(self, routing, timeout_ns):
        routing = self.named[routing]
        if not routing.ready:
            routing.owner.progress()
        return routing.status(), {}

    def routing_poll(self, routing):
        return self.named[routing].status() if self.named[routing].ready else "PENDING", {}

    def routing_view(self, routing):
        return "OK", {"view": self.named[routing].view()}

    def routing_coverage(self, routing, capacity):
        coverage, missing = self.named[routing].coverage(self.named[routing].end, capacity)
        return "INCOMPLETE" if coverage["cells_missing"] else "OK", {
            "coverage": coverage,
            "missing": missing,
        }

    def made(self, **routings):
        return {name: self.name("x", routing) for name, routing in routings.items()}

    def routing_split(self, routing, prompt_tokens, generated_tokens):
        prompt, generated = self.named[routing].split(prompt_tokens, generated_tokens)
        return "OK", self.made(prompt=prompt, generated=generated)

    def routing_slice(self, routing, first, rows):
        return "OK", self.made(slice=self.named[routing].slice(first, rows))

    def routing_merge(self, routings):
        merged = r.merge([self.named[routing] for routing in routings])
        return merged.status(), self.made(merged=merged)

    def routing_copy_to(self, routing, options, dst_bytes=None, mask_bytes=None):
        return self.copied(self.named[routing], options, dst_bytes, mask_bytes)

    def routing_retain(self, routing):
        return "OK", {"routing": self.name("x", self.named[routing])}

    def routing_free(self, routing):
        if routing is not None:
            del self.named[routing]
        return None, {}

    # ---- The serialised form

    def routing_serialize(self, routing, dst_bytes=None):
        data = serialized.serialize(self.named[routing])
        if dst_bytes is not None and dst_bytes < len(data):
            raise Failure("ERR_BUFFER_TOO_SMALL", needed=len(data))
        return "OK", {"dst": data, "needed": len(data)}

    def routing_deserialize(self, data, flags, lent=0):
        routing = serialized.deserialize(data, flags)
        return routing.status(), self.made(routing=routing)

    def routing_import(self, view, flags, lent=0):
        routing = serialized.import_view(view, flags)
        return routing.status(), self.made(routing=routing)

    def serialized_info(self, data):
        return "OK", {"info": serialized.info(data)}

    def serialized_splice(self, head, tail, row, capacity=None):
        routing = serialized.splice(head, tail, row)
        return "OK", self.made(routing=routing)

    # ---- Sequences

    def sequence_create(self, config):
        get = {
            "layers": 0,
            "k": 0,
            "experts": 0,
            "id_space": 0,
            "layer_map": None,
            "layer_experts": None,
            "reserved": 0,
        } | config
        count, k = get["layers"], get["k"]
        check(
            get["reserved"] == 0
            and 1 <= count <= r.MAX_LAYERS
            and 1 <= k <= r.MAX_K
            and get["id_space"] in (0, 1)
        )
        experts = get["layer_experts"] or [get["experts"]] * count
        order = get["layer_map"] or list(range(count))
        check(
            all(k <= e <= r.MAX_EXPERTS for e in experts)
            and order[0] >= 0
            and all(a < b for a, b in zip(order, order[1:]))
        )
        layers = [Layer(index, e) for index, e in zip(order, experts)]
        return "OK", {"sequence": self.name("q", q.Sequence(layers, k, get["id_space"]))}

    def sequence_free(self, sequence):
        if sequence is not None:
            del self.named[sequence]
        return None, {}

    def sequence_append(self, sequence, tokens, token_start=0, routing=None, options=None):
        made, report = self.named[sequence].append(
            tokens, token_start, self.named.get(routing), options
        )
        self.named[sequence] = made
        return "OK" if report["rows_missing"] == 0 else "INCOMPLETE", {"report": report}

    def sequence_truncate(self, sequence, tokens):
        self.named[sequence].cut(tokens)
        return "OK", {}

    def sequence_fork(self, sequence, tokens):
        parent = self.named[sequence]
        tokens = len(parent.tokens) if tokens == r.ALL else tokens
        check(tokens <= len(parent.tokens), "ERR_OUT_OF_RANGE")
        child = parent.copy()
        child.cut(tokens)
        return "OK", {"child": self.name("q", child)}

    def sequence_routing(self, sequence):
        routing = self.named[sequence].routing()
        return routing.status(), self.made(routing=routing)

    def sequence_spans(self, sequence, capacity):
        sequence = self.named[sequence]
        spans = sequence.spans(sequence.seen)
        names = ("first", "rows", "call", "tag", "origin")
        return "OK", {
            "spans": [dict(zip(names, span)) for span in spans[:capacity]],
            "count": len(spans),
        }

    def sequence_tokens(self, sequence, first, capacity):
        sequence = self.named[sequence]
        check(sequence.digests is None, "ERR_STATE")
        check(first <= len(sequence.tokens), "ERR_OUT_OF_RANGE")
        return "OK", {
            "tokens": sequence.tokens[first : first + capacity],
            "count": len(sequence.tokens) - first,
        }

    def sequence_report(self, sequence):
        return "OK", {"report": self.named[sequence].sums | self.named[sequence].now()}

    def sequence_serialize(self, sequence, flags=0):
        data = self.named[sequence].serialize(flags)
        return "OK", {"dst": data, "needed": len(data)}

    def sequence_deserialize(self, data):
        return "OK", {"sequence": self.name("q", q.deserialize(data))}

    # ---- Stores

    def store_config_init(self):
        return "OK", {"config": {"flags": 0, "generation": 0}}

    def store_create(self, config, shape):
        layers = self.shape(shape)
        store = t.Store(config, layers, shape["k"], shape.get("id_space", 0))
        return "OK", {"store": self.name("s", store)}

    def store_free(self, store):
        if store is not None:
            del self.named[store]
        return None, {}

    def store_stats(self, store):
        return "OK", {"counts": self.named[store].stats()}

    def store_advance(self, store, generation):
        self.named[store].advance(generation)
        return "OK", {}

    def prefix(self, capturer, store, first, keys, gives):
        """What publish and adopt look at first."""
        capturer, store = self.named[capturer], self.named[store]
        keys = store.keys(keys)
        store.check_rows(
            capturer.layers, capturer.k, capturer.config.get("id_space", 0), gives=gives
        )
        end = first + len(keys) * store.block_rows
        check(first <= r.MAX_POSITION and end <= r.MAX_POSITION, "ERR_OUT_OF_RANGE")
        return capturer, store, keys

    def request_publish(self, capturer, request, store, first, keys, generation):
        named, stored, keys = self.prefix(capturer, store, first, keys, False)
        named.publish(self.known(capturer, request), stored, first, keys, generation)
        return "OK", {}

    def request_adopt(self, capturer, request, store, first, keys, generation):
        named, stored, keys = self.prefix(capturer, store, first, keys, True)
        found = named.adopt(self.known(capturer, request), stored, first, keys, generation)
        return "OK", {"adoption": found}

    def request_publish_batch(self, capturer, store, items, generation):
        def one(**item):
            self.request_publish(capturer, store=store, generation=generation, **item)
            return "OK", None

        status, statuses, _ = self.batch(capturer, items, one)
        return status, {"status": statuses}

    def request_adopt_batch(self, capturer, store, items, generation):
        def one(**item):
            _, out = self.request_adopt(capturer, store=store, generation=generation, **item)
            return "OK", out["adoption"]

        status, statuses, found = self.batch(capturer, items, one)
        nothing = dict.fromkeys(("rows", "found", "evicted", "not_published", "stale"), 0)
        return status, {"status": statuses, "adoptions": [each or nothing for each in found]}

    def key_chain(self, seed, tokens, block_rows, key_bytes, keys_bytes=None):
        return "OK", {"keys": t.key_chain(seed, tokens, block_rows, key_bytes, keys_bytes)}

    def store_contains(self, store, keys, generation):
        store = self.named[store]
        store.check_generation(generation)
        reasons = [store.why(key, generation) for key in store.keys(keys)]
        leading = next((i for i, reason in enumerate(reasons) if reason), len(reasons))
        return "OK", {"reasons": reasons, "leading": leading}

    def store_retain(self, store, keys):
        store = self.named[store]
        return "OK", {"reasons": store.retain(store.keys(keys))}

    def store_release(self, store, keys):
        store = self.named[store]
        store.release(store.keys(keys))
        return "OK", {}

    def store_evict(self, store, keys):
        store = self.named[store]
        return "OK", {"evicted": store.evict(store.keys(keys))}

    def store_move(self, store, source, destination):
        store = self.named[store]
        store.move(store.keys(source), store.keys(destination))
        return "OK", {}

    def store_export(self, store, keys, generation):
        store = self.named[store]
        complete, data = store.export(store.keys(keys), generation)
        return "OK" if complete else "INCOMPLETE", {"dst": data}

    def store_import(self, store, data):
        return "OK", {"blocks": self.named[store].import_blocks(data)}
