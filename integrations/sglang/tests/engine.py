"""An engine of stand-ins: it schedules, caches and ends requests as SGLang does, as far as the
adapter can see it. Its routers are a function of the tokens before and at a position, so that the
right rows of a sequence are known."""

import enum
import types
from array import array

import numpy as np
import torch
from routecap_sglang._routed import FUNCTION
from watched import Known, Watched

LAYERS, EXPERTS, K, VOCABULARY = 5, 40, 4, 1000
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": LAYERS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": K,
    "mlp_only_layers": [1],
    "decoder_sparse_step": 1,
}
ROUTED = [0, 2, 3, 4]


class ForwardBatch(Known):
    pass


class ScheduleBatch(Known):
    pass


class InsertResult(Known):
    pass


class InsertParams(Known):
    pass


class ModelConfig(Known):
    pass


class TopKConfig(Known):
    pass


class Session(Known):
    pass


class SharedExperts(Known):
    pass


class GenerationBatchResult(Known):
    pass


class Updater(Known):
    pass


class Loading(Known):
    pass


class Component(enum.Enum):
    FULL, SWA, MAMBA = range(3)


def choose(tokens, weights=0):
    """[tokens, layers that route, k]: what the routers choose for the tokens of a sequence."""
    state, rows = 17 + weights, []
    for token in tokens:
        state = (state * 1_000_003 + int(token) + 1) % (1 << 61)
        rows.append(
            [np.random.default_rng([state, layer]).permutation(EXPERTS)[:K] for layer in ROUTED]
        )
    return np.array(rows, np.int32).reshape(len(rows), len(ROUTED), K)


def weigh(ids):
    """The weights beside ids: of each another one, which no other has."""
    return np.float32(1) / (np.asarray(ids, np.float32) + np.float32(3))


class Mode(Watched):
    def __init__(self, name):
        self.name = name

    def is_decode(self):
        return self.name == "decode"

    def is_target_verify(self):
        return self.name == "verify"

    def is_idle(self):
        return self.name == "idle"

    def is_dllm_extend(self):
        return self.name == "dllm"


class PaddingMode(Watched):
    """most: whether each rank's rows are padded to the most that one of them has."""

    def __init__(self, most):
        self.most = most

    def is_max_len(self):
        return self.most


class TopK(Watched, torch.nn.Module):
    def __init__(self, layer, allowed=True):
        super().__init__()
        self.layer_id = layer
        self.topk_config = TopKConfig(allow_routed_experts_capture=allowed)


class Model(torch.nn.Module):
    """The ids that its routers are to give are in the batch. stage: which of its layers are here."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(TopK(layer) for layer in ROUTED)
        self.capturer = None
        self.overwrites, self.stage = False, ROUTED
        self.around = None  # what is hooked around the function that takes ids
        self.shared_experts_config = SharedExperts(num_fused_shared_experts=0)

    def forward(self, input_ids, positions, forward_batch, **more):
        for i, layer in enumerate(ROUTED):
            if layer not in self.stage:
                continue
            ids = torch.from_numpy(forward_batch.ids[:, i].copy())
            weights = torch.from_numpy(weigh(ids))
            self.give(layer_id=layer, topk_ids=ids, topk_weights=weights)
            if self.overwrites:
                ids.zero_()
                weights.zero_()
        return "logits"

    def give(self, **given):
        if self.around is None:
            self.post_process(**given)
        else:
            self.around(self.post_process, **given)

    def post_process(self, topk_ids, topk_weights, layer_id):
        self.capturer.capture(layer_id=layer_id, topk_indices=topk_ids)


class Request(Watched):
    count = 0

    def __init__(self, tokens, most=8, asked=True, start=0, parameters=None, session=None):
        Request.count += 1
        self.rid = f"request-{Request.count}"
        self.origin_input_ids, self.output_ids = array("q", tokens), array("q")
        self.finished_len = None
        self.retraction_count = 0
        self.return_routed_experts, self.routed_experts_start_len = asked, start
        self.routed_experts = None
        self.sampling_params = types.SimpleNamespace(custom_params=parameters, beam_width=None)
        self.extra_key = self.cache_salt = None
        self.session = session
        self.most, self.computed = most, 0

    @property
    def tokens(self):
        return self.origin_input_ids + self.output_ids

    @property
    def output_ids_through_stop(self):
        return self.output_ids[: self.finished_len]


class Key(Watched):
    def __init__(self, tokens, request):
        self.token_ids, self.extra_key = tokens, request.extra_key
        self.cache_salt, self.is_bigram = request.cache_salt, False

    def __len__(self):
        return len(self.token_ids)


class Tree(Watched):
    """The cached sequences: a set of prefixes, of whole pages each."""

    disable = False
    tree_components, cache_controller = (Component.FULL,), None
    linker, enable_storage = None, False

    def __init__(self, face, page_size):
        self.face, self.page_size, self.known = face, page_size, {}

    def match(self, request, tokens):
        n, page = 0, self.page_size
        known = self.known.get((request.extra_key, request.cache_salt), set())
        while n + page <= len(tokens) and tuple(tokens[: n + page]) in known:
            n += page
        return n

    def checkpoint(self, request, up_to):
        self.face.checkpoint(self._checkpoint, self, request, up_to=up_to)

    def _checkpoint(self, cache, request, up_to):
        page = self.page_size
        tokens = request.tokens[: up_to // page * page]
        there = self.match(request, tokens)
        known = self.known.setdefault((request.extra_key, request.cache_salt), set())
        known.update(tuple(tokens[: n + page]) for n in range(0, len(tokens), page))
        result = InsertResult(prefix_len=there, rotation_tail_declined=False)
        params = InsertParams(key=Key(tokens, request))
        self.face.inserted(result, self, params)

    def evict(self, request, tokens, keep):
        """Everything behind the first `keep` tokens, which are whole pages."""
        known = self.known[request.extra_key, request.cache_salt]
        begin = tuple(tokens[: keep + self.page_size])
        known -= {each for each in known if each[: len(begin)] == begin}

    def load(self, key):
        """KV from elsewhere."""
        known = self.known[key.extra_key, key.cache_salt]
        there = self.match(key, key.token_ids)
        known.update(tuple(key.token_ids[: n + 1]) for n in range(len(key)))
        result = InsertResult(prefix_len=there, rotation_tail_declined=False)
        self.face.inserted(result, self, InsertParams(key=key))

    def reset(self):
        self.known.clear()
        self.face.flushed(None, self)


class Engine:
    """padding: rows that a pass has behind those of its requests. ahead: the next pass is issued
    before the results of this one are looked at."""

    def __init__(self, face, ranks, own, padding=3, chunk=16, page_size=1):
        self.face, self.ranks, self.padding, self.chunk = face, ranks, padding, chunk
        self.model, self.tree, self.weights = Model(), Tree(face, page_size), 0
        self.draw = np.random.default_rng(1)
        self.capturer = face.create(
            lambda **kwargs: own,
            model=self.model,
            model_config=ModelConfig(hf_text_config=CONFIG, context_len=4096),
            num_tokens=4000,
            max_running_requests=16,
            device="cpu",
        )
        self.model.capturer = self.capturer
        for hook in face.design().hooks:
            if hook.target == FUNCTION:
                self.model.around = hook.function
        self.divided = False  # whether context parallelism divides a pass
        self.computed = {}  # rid -> position -> row, as last computed

    def close(self):
        if hasattr(self.capturer, "capturer") and not self.capturer.capturer.closed:
            self.capturer.destroy()

    # ---- Passes

    def run(self, kind, requests, firsts, counts, tokens=None, in_graph=False):
        """One pass: `counts` rows of each request from `firsts` on; returns what SGLang carries."""
        rows = []
        for request, first, count in zip(requests, firsts, counts, strict=True):
            rows.append(choose(request.tokens[: first + count], self.weights)[first:])
            for i, row in enumerate(rows[-1]):
                self.computed.setdefault(request.rid, {})[first + i] = row
        return self.run_rows(
            kind, requests, firsts, counts, np.concatenate(rows), in_graph=in_graph
        )

    def run_rows(
        self,
        kind,
        requests,
        firsts,
        counts,
        rows,
        before=0,
        in_graph=False,
        positions=None,
        padding_mode=None,
        decodes=None,
    ):
        padding = self.padding + before
        ids = self.draw.permuted(
            np.tile(np.arange(EXPERTS, dtype=np.int32), (len(rows) + padding, len(ROUTED), 1)),
            axis=2,
        )[..., :K]
        ids[before : before + len(rows)] = rows
        batch = ForwardBatch(
            forward_mode=Mode(kind),
            ids=np.ascontiguousarray(ids),
            positions=torch.zeros(len(rows), dtype=torch.int64) if positions is None else positions,
            # Behind those of the requests is what the pass is padded with.
            seq_lens_cpu=None if None in firsts else torch.tensor([f + 1 for f in firsts] + [1, 1]),
            extend_prefix_lens_cpu=list(firsts),
            extend_seq_lens_cpu=list(counts),
            global_dp_buffer_len=len(ids),
            global_num_tokens_cpu=None,
            attn_cp_metadata=object() if self.divided else None,
            dp_padding_mode=padding_mode,
            spec_info=types.SimpleNamespace(draft_token_num=counts[0]),
        )
        self.face.name_requests(batch, None, ScheduleBatch(reqs=requests))
        batch.global_num_tokens_cpu = self.global_counts(len(rows), before)
        self.model.forward(None, batch.positions, batch)
        decodes = decodes or before or None if in_graph else None
        return self.capturer.on_forward_end(batch, in_graph, decodes)

    def global_counts(self, own, before):
        return [before, own] if self.ranks.num_dp_ranks == 2 else None

    def update(self, weights, version=None):
        """As a call of SGLang that updates all weights."""
        self.weights = weights
        self.face.updated(lambda updater, named: self.face.named(None, None, named), None, version)

    # ---- Requests

    def prefill(self, request):
        """In chunks, from what is cached on."""
        first = self.tree.match(request, request.tokens[:-1])
        hit = first
        while first < len(request.tokens):
            count = min(self.chunk, len(request.tokens) - first)
            self.run("prefill", [request], [first], [count])
            first += count
            self.tree.checkpoint(request, first)
        return hit

    def decode(self, requests, ahead=False):
        """One token of each. With `ahead` its row is computed before anybody looks at it."""
        for request in requests:
            request.output_ids.append(int(self.draw.integers(VOCABULARY)))
        if not ahead:
            firsts = [len(request.tokens) - 1 for request in requests]
            self.run("decode", requests, firsts, [1] * len(requests))

    def generate(self, requests):
        """To their ends; returns how many rows came from the cache."""
        hits = [self.prefill(request) for request in requests]
        for _ in range(max(request.most for request in requests)):
            going = [r for r in requests if len(r.output_ids) < r.most]
            self.decode(going)
            for request in going:
                if len(request.output_ids) == request.most:
                    self.finish(request)
        return hits

    def finish(self, request):
        self.face.collect(self.own_collect, None, request)
        self.tree.checkpoint(request, len(request.tokens))

    def own_collect(self, processor, request):
        request.routed_experts = self.capturer.get_topk()

    def answer(self, request):
        """What the client gets."""
        return self.face.encode_rows(lambda tensors: tensors, [request.routed_experts])[0]

    def retract(self, request):
        request.retraction_count += 1


def right(request, weights=0):
    """The rows of a request."""
    return choose(request.tokens, weights)[:-1]
