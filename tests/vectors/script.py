"""How a vector is written: calls made on the model, noted with all that they must return."""

from functools import partial

from model.calls import World
from model.routing import ALL, I32

MANUAL = 4
SHAPE = {"layers": 3, "k": 2, "experts": 16, "rows": 8}


class Dice:
    """Random numbers that are the same everywhere (splitmix64)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return (z ^ z >> 31) % n

    def pick(self, things):
        return things[self.below(len(things))]

    def sample(self, n, k):
        """k different numbers below n."""
        chosen = []
        while len(chosen) < k:
            i = self.below(n)
            if i not in chosen:
                chosen.append(i)
        return chosen


def routed(capturer, seed, position, layer):
    """The ids that a router chooses: different for every sequence, position and layer as far as
    experts allow.
    """
    return Dice(seed * 1000003 + position * 1009 + layer).sample(
        capturer.layers[layer].experts, capturer.k
    )


class Vector:
    """Every call of C is a method; it returns the outputs. `expect` is the status, without its
    prefix, that the author knows it has.
    """

    def __init__(self, name, header):
        self.name, self.world, self.calls = name, World(header), []

    def __getattr__(self, call):
        return partial(self.make, call)

    def make(self, call, expect="OK", raw=False, **arguments):
        status, out = self.world.call(call, arguments)
        if status is not None and expect is not None:
            assert status == "ROUTECAP_" + expect, (
                f"{self.name}: {call} returns {status}, not {expect}"
            )
        self.note(call, arguments, status, out, raw)
        return out

    def told(self, call, status, out=None, raw=False, **arguments):
        """A call in a way of which the model knows nothing: its author tells what it returns."""
        self.note(call, arguments, "ROUTECAP_" + status, out, raw)

    def note(self, call, arguments, status, out, raw):
        noted = {"call": call, "in": arguments}
        if status is not None:
            noted["status"] = status
        if out:
            noted["out"] = out
        if raw:
            noted["raw"] = True
        self.calls.append(noted)

    # ---- What most vectors do

    def capturer(self, **config):
        """A capturer of the usual shape, but for what is given."""
        pages = {"budget_pages": config.pop("budget_pages")} if "budget_pages" in config else {}
        config = {"backend": 1} | SHAPE | config
        config["flags"] = config.get("flags", 0) | MANUAL
        return self.capturer_create(config=config, **pages)["capturer"]

    def open(self, capturer, count=1, **options):
        made = self.request_open(
            capturer=capturer, count=count, **({"options": options} if options else {})
        )
        return made["requests"][0] if count == 1 else made["requests"]

    def record(self, capturer, rows, layers=None):
        """Record rows, of each layer k ids, into all layers in one call, or into some of them."""
        layers = range(len(self.world.named[capturer].layers)) if layers is None else layers
        sources = [
            {"layer": layer, "ids": [i for row in rows for i in row[layer]]} for layer in layers
        ]
        self.layers_record(
            capturer=capturer, source={"dtype": I32, "rows": len(rows)}, layers=sources
        )

    def rows(self, capturer, seed, first, count):
        named = self.world.named[capturer]
        return [
            [routed(named, seed, position, layer) for layer in range(len(named.layers))]
            for position in range(first, first + count)
        ]

    def forward(self, capturer, rows):
        self.step_begin(capturer=capturer, rows=len(rows))
        self.record(capturer, rows)
        self.step_snapshot(capturer=capturer)

    def step(self, capturer, *spans, expect="OK", tag=0, faults=()):
        """A whole forward pass and its issue. spans: (request, seed, position, rows[, flags]);
        faults: (sink row, layer, ids).
        """
        rows, issued = [], []
        for request, seed, position, count, *flags in spans:
            span = {"request": request, "position": position, "sink_row": len(rows), "rows": count}
            issued.append(span | ({"flags": flags[0]} if flags else {}))
            rows += self.rows(capturer, seed, position, count)
        for row, layer, ids in faults:
            rows[row][layer] = ids
        self.forward(capturer, rows)
        options = {"options": {"tag": tag}} if tag else {}
        return self.step_issue(capturer=capturer, spans=issued, expect=expect, **options)["step"]

    def land(self, capturer):
        self.capturer_progress(capturer=capturer)

    def extract(self, capturer, request, first=0, rows=ALL, mode=0, flags=0, expect="OK"):
        return self.request_extract(
            capturer=capturer,
            request=request,
            first=first,
            rows=rows,
            mode=mode,
            flags=flags,
            expect=expect,
        ).get("routing")

    def expect_rows(self, capturer, request, first=0, rows=ALL, expect="OK"):
        """Read rows of a request and look at them."""
        routing = self.extract(capturer, request, first, rows, expect=expect)
        self.routing_view(routing=routing)
        self.routing_free(routing=routing)

    def coverage(self, capturer, request, first=0, rows=ALL, capacity=8, expect="INCOMPLETE"):
        self.request_coverage(
            capturer=capturer,
            request=request,
            first=first,
            rows=rows,
            capacity=capacity,
            expect=expect,
        )

    def bytes_of(self, routing):
        return self.routing_serialize(routing=routing)["dst"]

    def captured(self, capturer, seed=1, count=4, first=0, tag=0, faults=(), expect="OK"):
        """A routing of `count` rows from position `first` on, from a request that has ended."""
        request = self.open(capturer)
        self.step(capturer, (request, seed, first, count), tag=tag, faults=faults)
        self.land(capturer)
        routing = self.extract(capturer, request, first=first, expect=expect)
        self.request_close(capturer=capturer, request=request)
        self.land(capturer)
        return routing


class Topic:
    """The vectors of one file."""

    def __init__(self, name):
        self.name, self.scenarios = name, []

    def vector(self, name, *arguments):
        """Decorates a function that makes the calls; with arguments, it may be used several times
        on one function.
        """

        def add(function):
            self.scenarios.append((name, function, arguments))
            return function

        return add

    def build(self, header):
        vectors = []
        for name, function, arguments in self.scenarios:
            vector = Vector(name, header)
            function(vector, *arguments)
            vectors.append({"name": name, "calls": vector.calls})
        return {"topic": self.name, "vectors": vectors}
