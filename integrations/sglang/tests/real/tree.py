"""Whose the KV of a hit is, by routecap's tree of prefixes and by SGLang's: random sequences that
begin alike, adapters and salts, evictions that nobody tells of, pages of several sizes, tokens and
pairs of tokens.

    python3 tree.py [SEEDS]
"""

import random
import sys
import types
from array import array

import numpy as np
import torch
from routecap_sglang import Options, _hooks, _versions
from routecap_sglang._lives import tokens_of, tree_of
from routecap_sglang._prefixes import Prefixes
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class Owner:
    def __init__(self, adopted):
        self.adopted, self.slots = adopted, []


class Capturer:
    """What the face tells of."""

    def __init__(self):
        self.prefixes = Prefixes(1 << 30)

    def softly(self, call, *args):
        return call(*args)

    def follow(self, *how):
        pass

    tree_of = staticmethod(tree_of)

    def cached(self, request, scope, tokens, first, page):
        self.prefixes.insert(scope, tokens, first, request, None, page)


def run(seed, page, pairs):
    draw = random.Random(f"{seed} {page} {pairs}")
    slots = types.SimpleNamespace(device="cpu", free_segment=lambda *args, **kwargs: None)
    tree = RadixCache.create_simulated(mock_allocator=slots, page_size=page)
    tree.is_eagle = pairs
    _hooks._followed = _hooks._outside = lambda *cache: False
    _hooks._design = _versions.find(_versions.installed(), Options()).design
    capturer = _hooks._capturer = Capturer()
    families = [[draw.randrange(3) for _ in range(8 * page)] for _ in range(3)]
    used, rows = 0, 0

    def key():
        tokens = list(draw.choice(families)[: draw.randrange(1, 8 * page)])
        tokens += [draw.randrange(3) for _ in range(draw.randrange(2 * page + 2))]
        scope = draw.choice(((None, None), (None, None), ("adapter", None), (None, "salt")))
        return tokens, RadixKey(array("q", tokens), scope[0], pairs, cache_salt=scope[1])

    def hit(of):
        found = tree.match_prefix(MatchPrefixParams(key=of))
        return tree.path_device_indices(found.last_device_node).tolist()

    for _ in range(200):
        tokens, of = key()
        adopted = hit(of)
        if draw.random() < 0.2:
            tree.evict(EvictParams(num_tokens=draw.randrange(4 * page)))
            if hit(of) != adopted:
                continue
        owner = Owner(len(adopted))
        owner.slots = adopted + list(range(used, used + len(tokens) - len(adopted)))
        used += len(tokens)
        aligned = of.page_aligned(page)
        params = InsertParams(key=aligned, value=torch.tensor(owner.slots[: len(aligned)]))
        _hooks._checkpointing = owner
        _hooks.inserted(tree.insert(params), tree, params)
        tokens, of = key()
        want, got = hit(of), []
        scope = (of.extra_key, of.cache_salt)
        for who, end in capturer.prefixes.find(scope, tokens_of(array("q", tokens)), len(want)):
            got += who.slots[len(got) : end]
        assert got == want, (seed, page, pairs, got, want)
        rows += len(want)
    return rows


def main():
    rows = 0
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        for page in (1, 2, 16, 64):
            for pairs in (False, True):
                rows += run(seed, page, pairs)
    print(f"{rows} rows of hits are of who computed their KV")
    return 0 if rows > 10000 else 1


if __name__ == "__main__":
    np.seterr(all="raise")
    raise SystemExit(main())
