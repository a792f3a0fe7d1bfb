"""Random schedules as vLLM makes them from 0.31 on, for both sides of its connector for auxiliary
output.

Requests share prefixes. They prefill in chunks, decode with and without drafts, are taken up to two
steps ahead of their outputs, are preempted, and end with steps in flight. Blocks leave the cache,
and now and then all of it is reset. What the router chose for a token depends on all before it.
"""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import torch

from routecap_vllm._aux_output import Numbers, RowsConnector
from routecap_vllm._capturer import RoutedExpertsCapturer

BLOCK = 4


def rows_connector(
    layers, k, experts, output, *, dense=(), rows=64, longest=256, block=BLOCK, **more
):
    """Ours of a model that is not there.

    dense: Layers that do not route.
    rows, longest: Of a step, of a request.
    """
    config = SimpleNamespace(
        model_type="qwen3_moe",
        num_hidden_layers=layers,
        num_experts=experts,
        num_experts_per_tok=k,
        mlp_only_layers=list(dense),
        decoder_sparse_step=1,
    )
    model = SimpleNamespace(hf_text_config=config)
    return RowsConnector(
        RoutedExpertsCapturer.create(True, model, 0, rows, longest, "cpu"),
        **{"store_bytes": 1 << 24, "numbers": Numbers(), **more},
        block_rows=block,
        decoder_layers=layers,
        output=output,
    )


class Router:
    """ids(tokens) [layers, k]: what is chosen for the last of them."""

    def __init__(self, layers, k, experts):
        self.shape, self.experts, self._known = (layers, k), experts, {}

    def ids(self, tokens):
        key = tuple(tokens)
        if key not in self._known:
            name = hashlib.sha256(str(tokens).encode()).digest()
            draw = np.random.default_rng(list(name[:8]))
            self._known[key] = draw.permuted(
                np.tile(np.arange(self.experts), (self.shape[0], 1)), axis=1
            )[:, : self.shape[1]]
        return self._known[key]


class Request:
    """What a scheduler knows of one."""

    def __init__(self, name, prompt, most, start):
        self.request_id, self.tokens, self.most = name, list(prompt), most
        self.num_prompt_tokens = len(prompt)
        self.sampling_params = SimpleNamespace(routed_experts_prompt_start=start)
        self.block_hashes = []
        self.num_computed_tokens = 0
        self.in_flight = 0
        self.next = 0  # position that the device computes next
        self.sampled = len(prompt)  # tokens that the device has
        self.decodes = False  # has sampled since it was scheduled anew
        self.numbers, self.new = [], True  # of its blocks; the worker knows nothing of it yet
        self.over = False
        self.hash()

    def hash(self):
        for end in range(BLOCK * (len(self.block_hashes) + 1), len(self.tokens) + 1, BLOCK):
            self.block_hashes.append(hashlib.sha256(str(self.tokens[:end]).encode()).digest())

    num_tokens = property(lambda self: len(self.tokens))
    num_output_tokens = property(lambda self: len(self.tokens) - self.num_prompt_tokens)

    def is_finished(self):
        return self.over

    def truth(self, end):
        """Its first `end` tokens, also those that are not known yet."""
        tokens = list(self.tokens[:end])
        while len(tokens) < end:
            tokens.append(sum(tokens) % 97 + len(tokens) % 5)
        return tokens


class Cache:
    """The scheduler's KV cache, as far as its side of the connector looks at it.

    blocks: The number of each block that can be hit, by its hash.
    """

    def __init__(self, count=150):
        self.blocks, self.count = {}, count
        self.hash_block_size = self.block_size = BLOCK
        self.block_pool = self
        self.full_attention_group_id = 0
        self.coordinator = self
        self.single_type_managers = [self]
        # No group keeps every row, so blocks are listed by their hashes, which the engine's own needs.
        self.kv_cache_config = SimpleNamespace(num_blocks=64, kv_cache_groups=[])

    def get_cached_block(self, block_hash, groups):
        return [block_hash] if block_hash in self.blocks else None

    def hit(self, request):
        blocks = 0
        while blocks < len(request.block_hashes) and request.block_hashes[blocks] in self.blocks:
            blocks += 1
        return min(blocks, (request.num_tokens - 1) // BLOCK) * BLOCK

    def allocate(self, draw, used):
        """The number of a block that no running request has. What it held cannot be hit."""
        held, found = set(self.blocks.values()), None
        while found is None or found in used or (found in held and draw.random() < 0.7):
            found = draw.randrange(1, self.count)
        self.blocks = {key: number for key, number in self.blocks.items() if number != found}
        return found


class Scheduling:
    """A stand-in for the scheduler's side: what each step's metadata say.

    early: until 0.32 hashes of blocks come as soon as the tokens are known, and nothing says which
        blocks are to be kept.
    """

    def __init__(self, early=False):
        self._early = early
        self._sent, self._over, self._generation = {}, {}, 0

    def build_connector_meta(self, output, requests):
        starts, hashes = {}, {}
        for name, count in output.num_scheduled_tokens.items():
            request = requests[name]
            self._sent.setdefault(name, 0)
            self._send(hashes, request, request.num_computed_tokens + count)
            first = 0 if request.num_output_tokens == 0 else request.num_tokens - 1
            starts[name] = max(request.sampling_params.routed_experts_prompt_start, first)
        for name in self._sent.keys() - starts.keys():
            self._send(hashes, requests[name], requests[name].num_computed_tokens)
        for name, last in self._over.items():
            hashes.update(last)
        over, self._over = tuple(self._over), {}
        kept = {} if self._early else {"retained_block_hashes": None, "released_block_hashes": None}
        return SimpleNamespace(
            generation=self._generation,
            requests=starts,
            block_hashes=hashes,
            finished_requests=over,
            **kept,
        )

    def _send(self, hashes, request, computed):
        name = request.request_id
        keyed = len(request.block_hashes)
        keyed = keyed if self._early else min(keyed, computed // BLOCK)
        if keyed > self._sent[name]:
            data = b"".join(request.block_hashes[self._sent[name] : keyed])
            hashes[name] = SimpleNamespace(data=data, item_size=32)
            self._sent[name] = keyed

    def request_finished(self, request):
        if request.request_id in self._sent:
            self._over[request.request_id] = {}
            self._send(self._over[request.request_id], request, request.num_computed_tokens)
            del self._sent[request.request_id]

    def reset(self):
        self._sent.clear()
        self._over.clear()
        self._generation += 1


def told(new=(), names=(), more=(), copies=None):
    """What the scheduler says of blocks with a step: to the worker's execute_model."""
    cached = SimpleNamespace(req_ids=names, new_block_ids=more, resumed_req_ids=set())
    return SimpleNamespace(
        scheduled_new_reqs=new, scheduled_cached_reqs=cached, kv_cache_block_copies=copies
    )


def capture(connector, rows):
    """A forward pass whose routers choose these rows."""
    for layer in range(rows.shape[1]):
        connector.capture.capture(layer, torch.from_numpy(np.ascontiguousarray(rows[:, layer])))


class Run:
    """steps(n) drives workers through a schedule; each output is given to `judge`.

    workers: (connector, forward(connector, rows)) each.
    judge: called with the request, its row in the step, what each worker gave for it.
    """

    def __init__(
        self,
        seed,
        router,
        scheduling,
        workers,
        judge,
        drafts=2,
        ahead=2,
        prefixes=3,
        forget=0.05,
        reset=0.05,
        blocks=150,
    ):
        self.draw, self.router, self.scheduling = random.Random(seed), router, scheduling
        self.workers, self.judge, self.drafts, self.ahead = workers, judge, drafts, ahead
        self.cache, self.forget, self.reset = Cache(blocks), forget, reset
        self.requests, self.running, self.waiting = {}, [], []
        self.queue, self.number = [], 0
        self.hits = self.preempted = self.rejected = self.resets = self.decoded = 0
        self.prefixes = [[self.draw.randrange(97) for _ in range(24)] for _ in range(prefixes)]

    def steps(self, count):
        for _ in range(count):
            self.add()
            self.preempt()
            self.step()
            while len(self.queue) >= self.ahead or self.queue and self.draw.random() < 0.3:
                self.take()
            self.forget_blocks()
        while self.queue:
            self.take()

    def add(self):
        if len(self.running) + len(self.waiting) < 6 and self.draw.random() < 0.6:
            prompt = self.draw.choice(self.prefixes)[: self.draw.randrange(1, 25)]
            prompt = prompt + [self.draw.randrange(97) for _ in range(self.draw.randrange(1, 9))]
            start = self.draw.choice((0, 0, 0, self.draw.randrange(len(prompt))))
            request = Request(f"r{self.number}", prompt, self.draw.randrange(1, 14), start)
            self.number += 1
            self.requests[request.request_id] = request
            self.waiting.append(request)

    def preempt(self):
        self.left = None  # it is not scheduled in the same step again
        idle = [request for request in self.running if not request.in_flight]
        if idle and self.draw.random() < 0.05:
            self.left = self.draw.choice(idle)
            self.drop(self.left)
            self.preempted += 1
        if not self.queue and self.draw.random() < self.reset:
            for request in list(self.running):
                self.drop(request)
            self.cache.blocks.clear()
            self.scheduling.reset()
            self.resets += 1

    def drop(self, request):
        self.scheduling.request_finished(request)
        self.running.remove(request)
        self.waiting.append(request)
        request.num_computed_tokens = 0
        request.decodes = False
        request.numbers = []

    def forget_blocks(self):
        used = {key for request in self.running for key in request.block_hashes}
        for key in sorted(self.cache.blocks.keys() - used):
            if self.draw.random() < self.forget:
                del self.cache.blocks[key]

    def schedule(self):
        while self.waiting and len(self.running) < 5 and self.waiting[0] is not self.left:
            request = self.waiting.pop(0)
            request.next = request.num_computed_tokens = self.cache.hit(request)
            request.sampled = request.num_tokens
            taken = request.block_hashes[: request.num_computed_tokens // BLOCK]
            request.numbers, request.new = [self.cache.blocks[key] for key in taken], True
            self.hits += request.num_computed_tokens
            self.running.append(request)
        counts, room = {}, 20
        for request in self.running:
            left = request.num_tokens - request.num_computed_tokens
            if left > 1 or left == 1 and not request.in_flight:
                count = min(left, self.draw.choice((3, 8, 20)), room)
                if left == 1:
                    count = min(self.one_and_drafts(request), room)
            elif request.in_flight == 1 and request.next >= request.sampled - 1:
                count = min(self.one_and_drafts(request), room)  # ahead of its output
            else:
                continue
            if count > 0 and self.draw.random() < 0.9:
                counts[request.request_id] = count
                room -= count
        return counts

    def one_and_drafts(self, request):
        return 1 + (self.draw.randrange(self.drafts + 1) if request.decodes else 0)

    def allocate(self, counts):
        """What the scheduler says of blocks with the step."""
        new, names, more = [], [], []
        for name, count in counts.items():
            request, allocated = self.requests[name], []
            while len(request.numbers) * BLOCK < request.num_computed_tokens + count:
                used = {number for each in self.running for number in each.numbers}
                allocated.append(self.cache.allocate(self.draw, used))
                request.numbers.append(allocated[-1])
            if request.new:
                computed, numbers = request.num_computed_tokens, list(request.numbers)
                new.append(
                    SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=(numbers,))
                )
            else:
                names.append(name)
                more.append((allocated,) if allocated else None)
            request.new = False
        return told(new, names, more)

    def step(self):
        counts = self.schedule()
        blocks = self.allocate(counts)
        metadata = self.scheduling.build_connector_meta(
            SimpleNamespace(num_scheduled_tokens=counts), self.requests
        )
        names = list(counts)
        self.draw.shuffle(names)
        begins, starts, rows, positions, sampled, rejected = [], [0], [], [], [], []
        drafted = []
        for name in names:
            request, count = self.requests[name], counts[name]
            begins.append(request.num_computed_tokens)
            known = request.sampled - request.next
            drafts = max(0, count - known)
            accepted = self.draw.randrange(drafts + 1)
            drafted.append(drafts)
            tokens = request.truth(request.next + count)
            for i in range(count):
                position = request.next + i
                wrong = i >= known + accepted
                rows.append(self.router.ids(tokens[: position + 1] + ["draft"] * wrong))
                positions.append(position)
            starts.append(starts[-1] + count)
            done = count >= known
            self.decoded += count if drafts else count == 1
            sampled.append(accepted + 1 if done else 0)
            rejected.append(drafts - accepted)
            self.rejected += rejected[-1]
            request.next += count - rejected[-1]
            request.sampled += sampled[-1]
            request.decodes |= done
            request.num_computed_tokens += count
            request.in_flight += 1
            cached = min(len(request.block_hashes), request.num_computed_tokens // BLOCK)
            for key, number in zip(request.block_hashes[:cached], request.numbers):
                self.cache.blocks.setdefault(key, number)
        batch = SimpleNamespace(
            req_ids=names,
            query_start_loc_np=np.array(starts, np.int32),
            num_computed_tokens_np=np.array(begins, np.int32),
            num_draft_tokens_per_req=np.array(drafted, np.int32) if any(drafted) else None,
            positions=torch.tensor(positions, dtype=torch.int64),
        )
        pending = []
        for connector, forward in self.workers:
            connector.told = blocks
            connector.begin_step(metadata)
            if names:
                forward(connector, np.array(rows, np.int32))
                output = connector.prepare_output(batch)
                output.enqueue_cpu_copy(np.array(sampled, np.int32), np.array(rejected, np.int32))
                pending.append(output)
        if names:
            self.queue.append((names, sampled, rejected, pending))

    def take(self):
        names, sampled, rejected, pending = self.queue.pop(0)
        outputs = [each.process_output() for each in pending]
        for name, new, less in zip(names, sampled, rejected):
            request = self.requests[name]
            request.in_flight -= 1
            self.judge(request, [output.get(name) for output in outputs])
            if request.over:
                continue
            request.num_computed_tokens -= less
            request.tokens = request.truth(request.num_tokens + new)
            request.hash()
            if new and request.num_output_tokens >= request.most:
                self.scheduling.request_finished(request)
                request.over = True
                self.running.remove(request)
