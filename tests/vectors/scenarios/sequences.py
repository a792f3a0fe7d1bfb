"""Conversations put together out of calls."""

from model import routing as r
from model.routing import U8
from model.sequence import BLOCK, EQUAL, FIXED, KEEP, NEWEST, WITH_TOKENS
from scenarios.serialized import patched
from script import Dice, Topic

topic = Topic("sequences")
SHAPE = {"layers": 2, "k": 2, "experts": 8}


def computed(tokens, first, end, drift=0):
    """Rows [first, end) as an engine computes them: each depends on every token before, and on what
    differs between two passes.
    """
    rows, seed = [], 1
    for position in range(end):
        seed = (seed * 31 + tokens[position] + drift * 7) % 1000003
        rows.append([Dice(seed * 2 + layer).sample(8, 2) for layer in range(2)])
    return rows[first:]


def segments(rows, first, tag):
    """Rows that lie beside one another, each of which may lack a cell (None) or be missing for a
    reason (a number).
    """
    made = []
    for position, row in enumerate(rows, first):
        if isinstance(row, int):
            made.append({"first": position, "rows": 1, "reason": row})
            continue
        if not made or "ids" not in made[-1]:
            made.append({"first": position, "rows": 0, "ids": [], "validity": [], "tag": tag})
        last = made[-1]
        last["rows"] += 1
        last["ids"] += [i for cell in row for i in cell or (r.UNWRITTEN, 0)]
        last["validity"].append(sum((cell is not None) << layer for layer, cell in enumerate(row)))
    for segment in made:
        if set(segment.get("validity", [])) == {3}:
            del segment["validity"]
    return made


def routing(v, rows, first=0, tag=0):
    view = SHAPE | {
        "dtype": U8,
        "first": first,
        "rows": len(rows),
        "segments": segments(rows, first, tag),
    }
    return v.routing_import(view=view, flags=0, expect=None)["routing"]


class Conversation:
    def __init__(self, v, **config):
        self.v, self.name = v, v.sequence_create(config=SHAPE | config)["sequence"]

    def append(self, tokens, rows=None, first=0, start=0, tag=0, expect="OK", raw=False, **options):
        v = self.v
        x = routing(v, rows, first, tag) if rows is not None else None
        v.sequence_append(sequence=self.name, tokens=tokens, token_start=start, expect=expect, raw=raw,
                          **({"routing": x} if x else {}), **({"options": options} if options else {}))  # fmt: skip

    def look(self):
        v = self.v
        x = v.sequence_routing(sequence=self.name, expect=None)["routing"]
        v.routing_view(routing=x)
        v.routing_coverage(routing=x, capacity=9, expect=None)
        v.routing_free(routing=x)
        v.sequence_spans(sequence=self.name, capacity=9)
        v.sequence_report(sequence=self.name)


PROMPT, ANSWER, TOOL, SECOND = [11, 12, 13], [21, 22], [31, 32], [41, 42, 43]


@topic.vector("two turns, each with all its rows")
def _(v):
    c = Conversation(v)
    one, two = PROMPT + ANSWER, PROMPT + ANSWER + TOOL + SECOND
    c.append(one, computed(one, 0, 4))
    c.look()
    c.append(two, computed(two, 0, 9, drift=1), tag=7, origin=3)
    c.look()
    v.sequence_tokens(sequence=c.name, first=2, capacity=4)
    v.sequence_serialize(sequence=c.name, flags=WITH_TOKENS)
    v.sequence_serialize(sequence=c.name)
    v.sequence_free(sequence=c.name)


@topic.vector("two turns, the second without what is known")
def _(v):
    c = Conversation(v)
    one, two = PROMPT + ANSWER, PROMPT + ANSWER + TOOL
    c.append(one, computed(one, 0, 4))
    c.append(TOOL, computed(two, 4, 6), first=4, start=5)
    c.look()


@topic.vector("a delta that lacks the boundary row, and the call that fills it")
def _(v):
    c = Conversation(v)
    one, two = PROMPT + ANSWER, PROMPT + ANSWER + TOOL
    c.append(one, computed(one, 0, 4))
    c.append(TOOL, computed(two, 5, 6), first=5, start=5, expect="INCOMPLETE")
    c.look()
    c.append([], computed(two, 3, 5), first=3, start=7)
    c.look()


@topic.vector("a row in the place of the last token's is not taken")
def _(v):
    c = Conversation(v)
    one = PROMPT + ANSWER
    rows = computed(one, 0, 4)
    c.append(one, rows + [rows[-1]] * 2)
    c.append(one + TOOL, computed(one + TOOL, 0, 6))
    c.look()


@topic.vector("tokens that diverge cut rows behind them")
def _(v):
    c = Conversation(v)
    one, two = PROMPT + ANSWER + TOOL, PROMPT + [22] + TOOL + SECOND
    c.append(one, computed(one, 0, 6))
    c.append(two, computed(two, 0, 8, drift=1))
    c.look()
    c.append([5], start=3)
    c.look()


@topic.vector("a retry that says what it was given has its own row before its first token")
def _(v):
    one, two = PROMPT + ANSWER, PROMPT + SECOND
    for prompt in (0, 2, 3, 4):
        c = Conversation(v)
        c.append(one, computed(one, 0, 4))
        c.append(two, computed(two, 0, 5, drift=1), prompt_tokens=prompt)
        c.look()


@topic.vector("parts of one call share a number")
def _(v):
    c = Conversation(v)
    whole = PROMPT + ANSWER + SECOND
    for end in range(4, 9):
        c.append(whole[end - 1 : end] if end > 4 else whole[:4], computed(whole, 0, end - 1)[end - 2 if end > 4 else 0 :],
                 first=end - 2 if end > 4 else 0, start=end - 1 if end > 4 else 0, call=5, tag=1)  # fmt: skip
    c.look()
    c.append(whole + [9], computed(whole + [9], 0, 8))
    c.look()


def policies(v, policy, expect):
    c = Conversation(v)
    one = PROMPT + ANSWER
    c.append(one, computed(one, 0, 4), tag=1)
    drifted = computed(one + TOOL, 0, 6, drift=2)
    drifted[1] = r.LOST
    drifted[2][1] = None
    c.append(one + TOOL, drifted, tag=2, policy=policy, expect=expect)
    c.look()


for name, policy, expect in (
    ("kept", KEEP, "INCOMPLETE"),
    ("replaced", NEWEST, "INCOMPLETE"),
    ("insisted on", EQUAL, "ERR_CONFLICT"),
):

    def differing(v, policy=policy, expect=expect):
        policies(v, policy, "OK" if expect == "INCOMPLETE" else expect)

    topic.vector(f"rows that two calls have are {name}")(differing)


@topic.vector("equal sets in another order are equal")
def _(v):
    c = Conversation(v)
    one = PROMPT + ANSWER
    c.append(one, computed(one, 0, 4))
    c.append(one, [[cell[::-1] for cell in row] for row in computed(one, 0, 4)], policy=EQUAL)
    c.append([11, 12, 99], expect="ERR_CONFLICT", policy=EQUAL)
    c.look()


@topic.vector("holes of every kind, and calls that fill them")
def _(v):
    c = Conversation(v)
    tokens = PROMPT + ANSWER + TOOL + SECOND
    whole = computed(tokens, 0, 9)
    first = [
        r.LOST,
        [whole[1][0], None],
        [None, None],
        whole[3],
        r.TAKEN,
        [None, whole[5][1]],
        r.REFUSED,
        whole[7],
        [None, None],
    ]
    second = [
        r.REFUSED,
        [None, whole[1][1]],
        r.LOST,
        whole[3],
        r.LOST,
        [None, None],
        [None, None],
        r.LOST,
        whole[8],
    ]
    c.append(tokens, first, tag=1, expect="INCOMPLETE")
    c.look()
    c.append(tokens, second, tag=2, expect="INCOMPLETE")
    c.look()
    v.sequence_serialize(sequence=c.name)
    c.append(tokens, whole, tag=3)
    c.look()


@topic.vector("forks and cuts")
def _(v):
    c = Conversation(v)
    tokens = PROMPT + ANSWER + TOOL
    c.append(tokens, computed(tokens, 0, 6))
    forks = []
    for cut in (0, 3, 6, r.ALL):
        fork = Conversation(v)
        fork.name = v.sequence_fork(sequence=c.name, tokens=cut)["child"]
        fork.look()
        forks.append(fork)
    forks[1].append(PROMPT + SECOND, computed(PROMPT + SECOND, 0, 5))
    forks[1].look()
    forks[2].append([5, 6], computed(tokens[:6] + [5, 6], 6, 7), first=6, start=6)  # row 5 is there
    forks[2].look()
    v.sequence_truncate(sequence=c.name, tokens=4)
    c.look()
    v.sequence_serialize(sequence=c.name, flags=WITH_TOKENS)
    v.sequence_truncate(sequence=c.name, tokens=9)
    v.sequence_fork(sequence=c.name, tokens=5, expect="ERR_OUT_OF_RANGE")
    v.sequence_tokens(sequence=c.name, first=5, capacity=0, expect="ERR_OUT_OF_RANGE")


def long_one(v, tokens=140):
    c = Conversation(v)
    ids = [i * i % 97 for i in range(tokens)]
    c.append(ids, computed(ids, 0, tokens - 1), tag=4)
    return c, ids


@topic.vector("a sequence comes back from its bytes")
def _(v):
    c, ids = long_one(v)
    data = v.sequence_serialize(sequence=c.name, flags=WITH_TOKENS)["dst"]
    again = Conversation(v)
    again.name = v.sequence_deserialize(data=data)["sequence"]
    again.look()
    v.sequence_tokens(sequence=again.name, first=130, capacity=20)
    again.append(ids + [1], computed(ids + [1], 0, 140))
    again.look()


@topic.vector("a sequence without its tokens is told them")
def _(v):
    c, ids = long_one(v)
    data = v.sequence_serialize(sequence=c.name)["dst"]
    other = ids[:100] + [96] + ids[101:]
    for tokens in (ids, ids + [7, 8], other):
        again = Conversation(v)
        again.name = v.sequence_deserialize(data=data)["sequence"]
        v.sequence_tokens(sequence=again.name, first=0, capacity=1, expect="ERR_STATE")
        v.sequence_serialize(sequence=again.name, flags=WITH_TOKENS, expect="ERR_STATE")
        again.append([1], start=140, expect="ERR_STATE")
        again.append(ids[:139], expect="ERR_STATE")
        v.sequence_truncate(sequence=again.name, tokens=100, expect="ERR_STATE")
        again.append(tokens, computed(tokens, 0, len(tokens) - 1))
        v.sequence_report(sequence=again.name)
        v.sequence_tokens(sequence=again.name, first=98, capacity=4)
    again = Conversation(v)
    again.name = v.sequence_deserialize(data=data)["sequence"]
    v.sequence_truncate(sequence=again.name, tokens=BLOCK)
    v.sequence_serialize(sequence=again.name)
    v.sequence_report(sequence=again.name)


@topic.vector("damaged bytes of a sequence are refused")
def _(v):
    c = Conversation(v)
    tokens = PROMPT + ANSWER
    c.append(tokens, computed(tokens, 0, 4))
    data = v.sequence_serialize(sequence=c.name, flags=WITH_TOKENS)["dst"]
    spans, digests, ids = FIXED.size, FIXED.size + 40, FIXED.size + 56
    for bad in (
        b"", data[:63], data[:-1], data + b"\0", b"X" + data[1:], patched(data, 8, "I", 2), patched(data, 12, "I", 3), patched(data, 16, "Q", 7),
        patched(data, 24, "Q", 6), patched(data, 24, "Q", 2**41), patched(data, 32, "Q", 2**60), patched(data, 40, "Q", 0),
        patched(data, 48, "Q", 1), patched(data, spans, "Q", 1), patched(data, spans + 8, "Q", 5), patched(data, spans + 8, "Q", 0),
        patched(data, spans + 36, "I", 1), patched(data, digests, "I", 5), patched(data, ids, "I", 12), patched(data, ids + 20, "I", 1),
        patched(data, 128, "I", 1),
    ):  # fmt: skip
        v.sequence_deserialize(data=bad, expect="ERR_FORMAT")


@topic.vector("what is refused leaves a sequence as it was")
def _(v):
    c = Conversation(v)
    tokens = PROMPT + ANSWER
    c.append(tokens, computed(tokens, 0, 4))
    c.append([1], start=6, expect="ERR_OUT_OF_RANGE")
    c.append(tokens, expect="ERR_OUT_OF_RANGE", prompt_tokens=6)
    other = v.sequence_create(config=SHAPE | {"experts": 9})["sequence"]
    x = routing(v, computed(tokens, 0, 4))
    v.sequence_append(sequence=other, tokens=tokens, routing=x, expect="ERR_SHAPE_MISMATCH")
    capturer = v.capturer(**SHAPE)
    request = v.open(capturer)
    v.step(capturer, (request, 1, 0, 4))
    pending = v.request_finish(capturer=capturer, request=request, rows=4)["routing"]
    v.sequence_append(sequence=c.name, tokens=tokens, routing=pending, expect="ERR_NOT_READY")
    v.land(capturer)
    c.look()
    for wrong in (
        {"layers": 0},
        {"k": 0},
        {"k": 9},
        {"experts": 32769},
        {"id_space": 2},
        {"layer_map": [1, 1]},
        {"reserved": 1},
    ):
        v.sequence_create(config=SHAPE | wrong, expect="ERR_ARGUMENT", raw=True)
    c.append(tokens, expect="ERR_ARGUMENT", raw=True, policy=3)


@topic.vector("a layer that is recomputed in one call is recomputed in the sequence")
def _(v):
    c = Conversation(v, layer_map=[3, 5])
    view = SHAPE | {
        "dtype": U8,
        "rows": 1,
        "layer_map": [3, 5],
        "segments": [{"first": 0, "rows": 1, "ids": [1, 2, 3, 4]}],
    }
    for provenance in ([0, 0], [0, 1]):
        x = v.routing_import(view=view | {"layer_provenance": provenance}, flags=0)["routing"]
        v.sequence_append(sequence=c.name, tokens=[1, 2], routing=x)
        c.look()


def random_calls(v, seed):
    """A conversation of everything that a call may do."""
    dice = Dice(seed)
    sequences = [Conversation(v)]
    for _ in range(14):
        c = dice.pick(sequences)
        model = v.world.named[c.name]
        length = len(model.tokens)
        action = dice.below(10)
        if action == 0:
            v.sequence_truncate(sequence=c.name, tokens=dice.below(length + 2))
        elif action == 1 and len(sequences) < 3:
            fork = Conversation(v)
            fork.name = v.sequence_fork(
                sequence=c.name, tokens=dice.pick([r.ALL, dice.below(length + 1)])
            )["child"]
            sequences.append(fork)
        elif action == 2:
            data = v.sequence_serialize(sequence=c.name, flags=WITH_TOKENS)["dst"]
            again = Conversation(v)
            again.name = v.sequence_deserialize(data=data)["sequence"]
            sequences[sequences.index(c)] = again
        else:
            start = dice.pick([0, 0, length, dice.below(length + 1)])
            end = max(start, dice.pick([length + dice.below(5), dice.below(length + 1)]))
            tokens = [model.tokens[p] if p < length else dice.below(3) for p in range(start, end)]
            if tokens and dice.below(4) == 0:
                tokens[dice.below(len(tokens))] += 1
            whole = model.tokens[:start] + tokens
            first = dice.pick([0, 0, dice.below(end + 1)])
            rows = computed(whole, min(first, end), end, drift=dice.below(3) // 2)[
                : end - first - dice.below(3) if end > first + 2 else None
            ]
            rows = [
                (
                    dice.pick([r.LOST, r.TAKEN, [None, row[1]], [row[0], None], [None, None]])
                    if dice.below(5) == 0
                    else row
                )
                for row in rows
            ]
            options = {
                "policy": dice.pick([KEEP, KEEP, NEWEST, EQUAL]),
                "tag": dice.below(2),
                "origin": dice.below(2),
            }
            if dice.below(3) == 0:
                options["prompt_tokens"] = dice.below(end + 1)
            if dice.below(3) == 0:
                options["call"] = 1 + dice.below(3)
            c.append(
                tokens,
                rows if dice.below(6) else None,
                first=min(first, end),
                start=start,
                expect=None,
                **options,
            )
        sequences[-1].look()


for seed in range(8):
    topic.vector(f"random calls of a conversation, number {seed}", seed)(random_calls)
