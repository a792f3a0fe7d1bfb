"""Captures at random: an engine that prefills, decodes, drafts, preempts, forks and finishes, read
at any time.
"""

from model.capturer import COMPARE, COPY, DEVICE_POSITIONS, MAY_LOSE, SHARE, SPECULATIVE, TAKE
from model.routing import ALL, I32, I64, LANDED
from script import Dice, Topic, routed

topic = Topic("random")


class Engine:
    def __init__(self, v, seed):
        self.v, self.dice = v, Dice(seed)
        dice = self.dice
        layers = 1 + dice.below(10)
        k = 1 + dice.below(4)
        self.shape = {
            "layers": layers,
            "k": k,
            "experts": dice.pick([k + 1, 16, 256, 300]),
            "rows": 10,
            "slots": 1 + dice.below(4),
        }
        self.c = v.capturer(flags=COMPARE * dice.below(2) | MAY_LOSE * dice.below(2), **self.shape)
        self.requests = {}  # name -> (seed, next position)
        self.drafts = []  # (request, step, how many)
        self.routings = []
        self.steps = 0

    def fault(self):
        """Ids that are missing, or None."""
        if self.dice.below(12) > 0:
            return None
        experts, k = self.shape["experts"], self.shape["k"]
        if self.dice.below(2) and k > 1:
            return [0] * k
        return [experts] + list(range(k - 1))

    def forward(self, tokens):
        """tokens: (seed, position) of each sink row."""
        named = self.v.world.named[self.c]
        rows = []
        for seed, position in tokens:
            rows.append(
                [
                    self.fault() or routed(named, seed, position, layer)
                    for layer in range(self.shape["layers"])
                ]
            )
        self.v.step_begin(capturer=self.c, rows=len(rows))
        self.v.record(self.c, rows)
        self.v.step_snapshot(capturer=self.c)

    def step(self):
        dice, tokens, spans, positions, speculated = self.dice, [], [], [], []
        for request, (seed, following) in list(self.requests.items()):
            room = 10 - len(tokens)
            if room == 0 or dice.below(4) == 0:
                continue
            rows = min(room, 1 + dice.below(4))
            position = (
                dice.below(following + 1) if dice.below(8) == 0 else following
            )  # computed again now and then
            span = {"request": request, "position": position, "sink_row": len(tokens), "rows": rows}
            flags = SPECULATIVE * (dice.below(4) == 0) + DEVICE_POSITIONS * (dice.below(6) == 0)
            start = position
            if flags & DEVICE_POSITIONS:
                start += dice.below(3)
                span["position_end"] = position + rows + dice.below(4)
            if flags:
                span["flags"] = flags
            tokens += [(seed, start + i) for i in range(rows)]
            positions += [start + i for i in range(rows)]
            if flags & SPECULATIVE:
                speculated.append((request, rows))
            else:
                self.requests[request] = (seed, max(following, position + rows))
            spans.append(span)
        if not spans:
            return
        self.forward(tokens)
        options = {"tag": dice.below(3)}
        if any("flags" in span for span in spans):
            options |= {"positions": positions, "positions_dtype": dice.pick([I32, I64])}
        step = self.v.step_issue(capturer=self.c, spans=spans, options=options, expect=None)["step"]
        self.drafts += [(request, step, rows) for request, rows in speculated]

    def settle(self):
        if not self.drafts:
            return
        request, step, rows = self.drafts.pop(self.dice.below(len(self.drafts)))
        if request not in self.requests:
            return
        seed, following = self.requests[request]
        if self.dice.below(2):
            self.v.request_accept(
                capturer=self.c, request=request, step=step, count=self.dice.below(rows + 1)
            )
        else:
            kept = sorted(self.dice.sample(rows, 1 + self.dice.below(rows)))
            self.v.request_accept(capturer=self.c, request=request, step=step, rows=kept)
        length = self.v.world.named[request].length()
        self.requests[request] = (seed, max(following, length))

    def end(self, request):
        del self.requests[request]
        self.drafts = [draft for draft in self.drafts if draft[0] != request]

    def change(self):
        if not self.requests:
            return
        v, c, dice = self.v, self.c, self.dice
        request = dice.pick(list(self.requests))
        seed, following = self.requests[request]
        match dice.below(5):
            case 0:
                v.capturer_progress(capturer=c)
                rows = dice.below(following + 1)
                v.request_truncate(capturer=c, request=request, rows=rows)
                self.requests[request] = (seed, min(following, rows))
            case 1:
                child = v.request_fork(capturer=c, request=request, rows=ALL)["child"]
                self.requests[child] = (seed, following)
                v.capturer_progress(capturer=c)
            case 2:
                x = v.request_finish(
                    capturer=c, request=request, rows=dice.pick([ALL, dice.below(following + 3)])
                )["routing"]
                v.routing_wait(routing=x, timeout_ns=-1, expect=None)
                self.look(x)
                self.end(request)
            case 3:
                v.request_close(capturer=c, request=request)
                self.end(request)
            case 4 if self.routings:
                routing = dice.pick(self.routings)
                v.request_attach(capturer=c, request=request, routing=routing, rows=ALL)
                self.requests[request] = (seed, max(following, v.world.named[routing].end))
        v.capturer_progress(capturer=c)

    def look(self, routing):
        v, dice = self.v, self.dice
        v.routing_view(routing=routing)
        if dice.below(2):
            v.routing_coverage(routing=routing, capacity=dice.below(8), expect=None)
        if dice.below(3) == 0:
            v.routing_serialize(routing=routing)
        if dice.below(3) == 0:
            named = v.world.named[routing]
            cells = len(named.rows) * len(named.layers)
            options = {
                "dtype": dice.pick([2, I32, 5, I64]),
                "order": dice.below(2),
                "fill": dice.pick([-1, 1000]),
            }
            v.routing_copy_to(
                routing=routing,
                options=options,
                dst_bytes=8 * cells * named.k,
                mask_bytes=cells,
                expect=None,
            )

    def read(self):
        if not self.requests:
            return
        v, dice = self.v, self.dice
        request = dice.pick(list(self.requests))
        named = v.world.named[self.c]
        if (
            dice.below(3) or not named.log or not named.all_applied
        ):  # what changed can be read after progress only
            v.capturer_progress(capturer=self.c)
        length = v.world.named[request].length()
        first = dice.below(length + 1)
        rows = dice.pick([ALL, LANDED, dice.below(length - first + 1)])
        v.request_coverage(
            capturer=self.c, request=request, first=first, rows=rows, capacity=4, expect=None
        )
        x = v.extract(
            self.c,
            request,
            first=first,
            rows=rows,
            mode=dice.pick([SHARE, SHARE, COPY, TAKE]),
            expect=None,
        )
        if x is not None:
            self.look(x)
            self.routings.append(x)

    def divide(self):
        """What can be made of routings."""
        if not self.routings:
            return
        v, dice = self.v, self.dice
        x = dice.pick(self.routings)
        named = v.world.named[x]
        at = named.first + dice.below(len(named.rows) + 1)
        parts = v.routing_split(routing=x, prompt_tokens=at, generated_tokens=ALL)
        merged = v.routing_merge(routings=[parts["generated"], parts["prompt"]], expect=None)[
            "merged"
        ]
        for routing in (parts["prompt"], merged):
            v.routing_view(routing=routing)
        data = v.routing_serialize(routing=merged)["dst"]
        y = v.routing_deserialize(data=data, flags=0, lent=dice.below(2), expect=None)["routing"]
        v.routing_view(routing=y)

    def run(self):
        opened = self.v.open(self.c, 3)
        self.requests = {request: (seed, 0) for seed, request in enumerate(opened, 1)}
        for _ in range(12):
            if self.requests and self.dice.below(5):
                self.step()
            if self.dice.below(3) == 0:
                self.settle()
            if self.dice.below(4) == 0:
                self.change()
            if self.dice.below(2):
                self.read()
            if self.dice.below(6) == 0:
                self.divide()
        self.v.capturer_progress(capturer=self.c)
        for request in list(self.requests):
            x = self.v.request_finish(capturer=self.c, request=request, rows=ALL)["routing"]
            self.v.routing_wait(routing=x, timeout_ns=-1, expect=None)
            self.v.routing_view(routing=x)
        self.v.capturer_layer_stats(capturer=self.c, count=self.shape["layers"])
        self.v.capturer_stats(capturer=self.c)


def run(v, seed):
    Engine(v, seed).run()


for seed in range(1, 31):
    topic.vector(f"a capture at random, drawn with seed {seed}", seed)(run)
