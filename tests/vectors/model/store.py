"""A store as simple as it can be: a dictionary of blocks by key, whose rows come when they land.

Its budget is never reached.
"""

import hashlib
import math
import struct

from . import routing as r
from . import serialized
from .routing import Failure, Row, Routing, check, same_ids, unite

SLOT_KEYS = 1
MAX_BLOCK_ROWS, MIN_KEY_BYTES, MAX_KEY_BYTES = 4096, 8, 64
HEADER = struct.Struct("<8sIIQQQII16x")
COUNTED = "published repeated empty refused stale adopted absent mismatched replaced evicted imported".split()


def least_tag(rows):
    """The generation of rows: of those that have a valid cell."""
    return min((row.tag for row in rows if row and row.any()), default=math.inf)


class Block:
    def __init__(self, key, generation, owner=None, drafts=False):
        self.key, self.drafts = key, drafts
        self.generation = generation  # of its publisher; landed: the least tag of its rows
        self.owner = owner  # the capturer for which it is there while it is in flight
        self.rows = None  # until it has landed
        self.stale = False  # it landed, and those who adopted it hear that
        self.unwanted = False  # lost its key while it was in flight
        self.retained = 0


class Store:
    def __init__(self, config, layers, k, id_space):
        self.layers, self.k, self.id_space = layers, k, id_space
        self.flags = config.get("flags", 0)
        self.block_rows = config.get("block_rows", 0) or 16
        self.key_bytes = config.get("key_bytes", 0) or 32
        self.generation = config.get("generation", 0)
        check(
            self.flags & ~SLOT_KEYS == 0
            and self.block_rows <= MAX_BLOCK_ROWS
            and MIN_KEY_BYTES <= self.key_bytes <= MAX_KEY_BYTES
        )
        self.blocks = {}  # by key; also some in flight
        self.gone = set()  # keys of blocks that went
        self.counts = dict.fromkeys(COUNTED, 0)

    def keys(self, data):
        return [data[i : i + self.key_bytes] for i in range(0, len(data), self.key_bytes)]

    def check_rows(self, layers, k, id_space, gives):
        """Whether rows can go between the store and something of that shape."""
        shape = [(layer.index, layer.experts) for layer in layers]
        check(
            (k, id_space) == (self.k, self.id_space)
            and shape == [(layer.index, layer.experts) for layer in self.layers],
            "ERR_SHAPE_MISMATCH",
        )
        source, target = (self.layers, layers) if gives else (layers, self.layers)
        check(
            all(a.provenance <= b.provenance for a, b in zip(source, target)), "ERR_SHAPE_MISMATCH"
        )

    def check_generation(self, generation):
        check(generation <= self.generation, "ERR_STATE")

    def current(self, block):
        return block.generation >= self.generation

    def why(self, key, generation, adopter=None):
        """What an adopter hears who is at this generation: 0 if there is a block."""
        block = self.blocks.get(key)
        if block is None:
            return r.EVICTED if key in self.gone else r.NOT_PUBLISHED
        landed = block.rows is not None
        there = landed or (not block.drafts and adopter in (None, block.owner))
        if self.current(block) and generation == self.generation and there:
            return 0
        return r.STALE if landed else r.NOT_PUBLISHED

    # ---- Publishing

    def note(self, block):
        """A publish has been called."""
        there = self.blocks.get(block.key)
        if not self.flags & SLOT_KEYS and (block.drafts or (there and self.current(there))):
            return  # it meets the other when it lands
        if there:
            self.counts["replaced"] += bool(self.flags & SLOT_KEYS)
            block.retained, there.unwanted = there.retained, True
        self.blocks[block.key] = block

    def land(self, block, rows):
        """Rows of a block; None where nothing of a row is there."""
        there = self.blocks.get(block.key)
        if not self.current(block) or least_tag(rows) < self.generation:
            self.counts["stale"] += 1
            block.stale = True
            if there is block:
                del self.blocks[block.key]
            return
        meets = there is not block and not self.flags & SLOT_KEYS and not block.unwanted
        nothing = Row((r.NOT_PUBLISHED,) * len(self.layers))
        if meets and there and there.rows is not None and self.current(there):
            before = there.rows
        else:
            before = [nothing] * self.block_rows
        rows = [row if row and row.reason() is None else None for row in rows]
        both = [
            (old, new)
            for mine, other in zip(before, rows)
            if other
            for old, new in zip(mine.cells, other.cells)
            if isinstance(new, tuple)
        ]
        news = any(not isinstance(old, tuple) for old, _ in both)
        self.counts["mismatched"] += any(
            isinstance(old, tuple) and not same_ids(old, new) for old, new in both
        )
        self.counts["published" if news else "repeated" if both else "empty"] += 1
        if both:
            block.rows = [unite(old, new) for old, new in zip(before, rows)]
            block.generation = least_tag(block.rows)
        if there is block and not news:
            del self.blocks[block.key]
        elif meets and news:
            block.retained = there.retained if there else 0
            self.blocks[block.key] = block

    # ---- Adopting

    def adopt(self, keys, generation, adopter):
        """The blocks, or why they are not there; and what is said of them."""
        self.check_generation(generation)
        reasons = [self.why(key, generation, adopter) for key in keys]
        found = reasons.count(0)
        self.counts["adopted"] += found
        self.counts["absent"] += len(keys) - found
        leading = next((i for i, reason in enumerate(reasons) if reason), len(reasons))
        adoption = {
            "rows": leading * self.block_rows,
            "found": found,
            "evicted": reasons.count(r.EVICTED),
            "not_published": reasons.count(r.NOT_PUBLISHED),
            "stale": reasons.count(r.STALE),
        }
        return [
            self.blocks[key] if reason == 0 else reason for key, reason in zip(keys, reasons)
        ], adoption

    # ---- Keeping, dropping, moving

    def retain(self, keys):
        reasons = [self.why(key, self.generation) for key in keys]
        for key, reason in zip(keys, reasons):
            if reason == 0:
                self.blocks[key].retained += 1
        return reasons

    def release(self, keys):
        for key in keys:
            if key in self.blocks:
                self.blocks[key].retained = max(0, self.blocks[key].retained - 1)

    def leave(self, key):
        """A block loses its key, which says why."""
        block = self.blocks.pop(key)
        self.gone.add(key)
        return block

    def evict(self, keys):
        there = [key for key in dict.fromkeys(keys) if key in self.blocks]
        for key in there:
            block = self.leave(key)
            self.counts["evicted"] += 1
            block.unwanted = True
        return len(there)

    def move(self, source, destination):
        check(self.flags & SLOT_KEYS, "ERR_STATE")
        moved = {to: self.leave(key) for key, to in zip(source, destination) if key in self.blocks}
        self.evict(destination)
        for key, block in moved.items():
            block.key = key
        self.blocks |= moved

    def advance(self, generation):
        self.generation = max(self.generation, generation)

    def stats(self):
        blocks = self.blocks.values()
        return {
            "block_rows": self.block_rows,
            "key_bytes": self.key_bytes,
            "flags": self.flags,
            "generation": self.generation,
            "blocks": len(blocks),
            "blocks_in_flight": sum(block.rows is None for block in blocks),
            "blocks_retained": sum(block.retained > 0 for block in blocks),
        } | {f"blocks_{name}": n for name, n in self.counts.items()}

    # ---- Blocks as bytes

    def export(self, keys, generation):
        self.check_generation(generation)
        there = [
            key
            for key in keys
            if self.why(key, generation) == 0 and self.blocks[key].rows is not None
        ]
        rows = [row for key in there for row in self.blocks[key].rows]
        body = serialized.serialize(Routing(self.layers, self.k, self.id_space, 0, rows))
        names = b"".join(there)
        at = serialized.up(HEADER.size + len(names), 64)
        head = HEADER.pack(b"RCBLOCKS", 1, self.flags, at + len(body), generation, len(there),
                           self.block_rows, self.key_bytes)  # fmt: skip
        return len(there) == len(keys), (head + names).ljust(at, b"\0") + body

    def import_blocks(self, data):
        check(len(data) >= HEADER.size, "ERR_FORMAT")
        magic, version, flags, size, generation, blocks, block_rows, key_bytes = HEADER.unpack_from(
            data
        )
        check(magic == b"RCBLOCKS" and version == 1 and size == len(data), "ERR_FORMAT")
        check(not any(data[48 : HEADER.size]), "ERR_FORMAT")
        check(
            (block_rows, key_bytes) == (self.block_rows, self.key_bytes)
            and (flags ^ self.flags) & SLOT_KEYS == 0,
            "ERR_SHAPE_MISMATCH",
        )
        end = HEADER.size + blocks * key_bytes
        at = serialized.up(end, 64)
        check(at <= len(data) and not any(data[end:at]), "ERR_FORMAT")
        routing = serialized.deserialize(data[at:], 0)
        self.check_rows(routing.layers, routing.k, routing.id_space, gives=False)
        check(routing.first == 0 and len(routing.rows) == blocks * block_rows, "ERR_FORMAT")
        self.check_generation(generation)
        if generation < self.generation:
            self.counts["stale"] += blocks
            return blocks
        for i, key in enumerate(self.keys(data[HEADER.size : end])):
            block = Block(key, generation)
            self.note(block)
            self.land(block, routing.rows[i * block_rows : (i + 1) * block_rows])
        self.counts["imported"] += blocks
        return blocks


def key_chain(seed, tokens, block_rows, key_bytes, keys_bytes):
    check(1 <= block_rows <= MAX_BLOCK_ROWS and MIN_KEY_BYTES <= key_bytes <= MAX_KEY_BYTES)
    blocks = len(tokens) // block_rows
    if keys_bytes is not None and keys_bytes < blocks * key_bytes:
        raise Failure("ERR_BUFFER_TOO_SMALL")
    person = b"routecap" + struct.pack("<II", block_rows, 0)
    keys, before = b"", seed
    for i in range(blocks):
        block = tokens[i * block_rows : (i + 1) * block_rows]
        data = before + struct.pack(f"<{block_rows}i", *block)
        before = hashlib.blake2b(data, digest_size=key_bytes, person=person).digest()
        keys += before
    return keys
