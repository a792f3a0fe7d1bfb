"""As slots.py, for vLLM 0.33: its own scheduler, and routecap's side of the worker, without a GPU.

    python3 slots_aux.py [--rows N] [--block ROWS] [--blocks N]
                         [--sync] [--updates load|none] [--flush P] [--seed N]

Without the runner of 0.33 it is fast. The scheduler, the cache of blocks, their hashes and the
scheduler's side of the connector are the engine's, and the model is a function of the tokens and of
the weights. The oracle goes by the numbers of blocks alone, as the worker is told them. Prints a
line for each kind of row, and PASSED or FAILED.
"""

import argparse
import collections
import hashlib
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=20000, help="as many are judged at least")
parser.add_argument("--block", type=int, default=16)
parser.add_argument("--blocks", type=int, default=0, help="of the cache; few: preemptions")
parser.add_argument("--sync", action="store_true", help="no async scheduling")
parser.add_argument("--updates", choices=("load", "none"), default="load")
parser.add_argument(
    "--flush", type=float, default=0.3, help="share of updates that empty the cache"
)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import numpy as np  # noqa: E402
import torch  # noqa: E402
from schedule import capture, rows_connector  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.aux_output_connector.connector import AuxRequestOutput  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched import scheduler as scheduler_module  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

from routecap_vllm import _aux_output  # noqa: E402

LAYERS, K, EXPERTS, VOCABULARY = 16, 4, 64, 2048
LONGEST, ROOM = max(256, 6 * options.block), max(128, 2 * options.block)
BLOCKS = options.blocks or max(640 // options.block, 16)
EVERY = 9  # steps from one update to the next


def scheduler():
    """The engine's own, with routecap's part."""
    _aux_output.put_scheduler(scheduler_module)
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(HERE.parents[3] / "tests/engines/models/tiny"),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=LONGEST,
        ),
        cache_config=CacheConfig(block_size=options.block, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=ROOM,
            max_num_seqs=8,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=not options.sync,
        ),
        device_config=DeviceConfig(device="cpu"),
    )
    config.aux_output_config.enable_return_routed_experts = True
    config.cache_config.num_gpu_blocks = BLOCKS
    spec = FullAttentionSpec(options.block, num_kv_heads=1, head_size=64, dtype=torch.float32)
    cache = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    kind = scheduler_module.Scheduler if options.sync else AsyncScheduler
    made = kind(config, cache, StructuredOutputManager(config), options.block, log_stats=False)
    assert isinstance(made.aux_output_connector, _aux_output.TolerantScheduling)
    return made


def connector():
    sizes = {"rows": ROOM, "longest": LONGEST, "block": options.block}
    return rows_connector(LAYERS, K, EXPERTS, AuxRequestOutput, **sizes)


class Life:
    """A request in the worker, from when it is scheduled until it is preempted or ends.

    truth: {position: (ids, version of the weights then, who computed it, whether it was a hit,
        whether blocks of other weights were in the cache then)}.
    """

    def __init__(self, name, tokens, blocks, computed):
        self.name, self.tokens, self.blocks, self.computed = name, tokens, blocks, computed
        self.truth, self._digests = {}, []

    def digest(self, position):
        """Of all tokens up to there."""
        while len(self._digests) <= position:
            last = self._digests[-1] if self._digests else b""
            token = self.tokens[len(self._digests)]
            self._digests.append(hashlib.sha256(last + token.to_bytes(4, "little")).digest())
        return self._digests[position]


class Worker:
    """What was computed into each row of each block, and so what each request attends to."""

    def __init__(self):
        self.connector, self.lives, self.slots = connector(), {}, {}
        self.version, self.mixed, self.queue, self.preempted = 0, False, [], 0

    def execute(self, step):
        begins = []
        for name in step.finished_req_ids | (step.preempted_req_ids or set()):
            self.preempted += self.lives.pop(name, None) is not None and (
                name not in step.finished_req_ids
            )
        for new in step.scheduled_new_reqs:
            tokens = list(new.prefill_token_ids or new.prompt_token_ids)
            blocks, computed = list(new.block_ids[0]), new.num_computed_tokens
            begins.append(Life(new.req_id, tokens, blocks, computed))
            self.lives[new.req_id] = begins[-1]
        cached = step.scheduled_cached_reqs
        assert not cached.resumed_req_ids and not step.kv_cache_block_copies
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            life = self.lives[name]
            assert life.computed == computed
            life.blocks += blocks[0] if blocks else []
        self.connector.told = step
        self.connector.begin_step(step.aux_output_connector_metadata)
        names = list(step.num_scheduled_tokens)
        if not names:
            self.queue.append((step, None, {}, {}))
            return
        draw.shuffle(names)
        lives = {name: self.lives[name] for name in names}
        starts, rows, positions, sampled = [0], [], [], {}
        began = [life.computed for life in lives.values()]
        for name, life in lives.items():
            count = step.num_scheduled_tokens[name]
            for position in range(life.computed, life.computed + count):
                rows.append(self.route(life, position))
                positions.append(position)
            starts.append(starts[-1] + count)
            life.computed += count
            sampled[name] = []
            if life.computed == len(life.tokens):
                seen = life.digest(life.computed - 1)
                token = hashlib.sha256(seen + bytes([self.version % 256])).digest()
                sampled[name] = [int.from_bytes(token[:4], "little") % VOCABULARY]
                life.tokens += sampled[name]
        for life in begins:  # also what another computed in this step
            count = step.num_scheduled_tokens[life.name]
            for position in range(life.computed - count):
                place = life.blocks[position // options.block], position % options.block
                ids, who = self.slots[place]
                life.truth[position] = ids, self.version, who, True, self.mixed
        capture(self.connector, np.array(rows, np.int32))
        pending = self.connector.prepare_output(
            SimpleNamespace(
                req_ids=names,
                query_start_loc_np=np.array(starts, np.int32),
                num_computed_tokens_np=np.array(began, np.int32),
                num_draft_tokens_per_req=None,
                positions=torch.tensor(positions, dtype=torch.int64),
            )
        )
        new = np.array([len(each) for each in sampled.values()], np.int32)
        pending.enqueue_cpu_copy(new, np.zeros_like(new))
        self.queue.append((step, pending, sampled, lives))

    def route(self, life, position):
        seen = hashlib.sha256(life.digest(position) + self.version.to_bytes(4, "little")).digest()
        first, apart = np.frombuffer(seen, np.uint8).reshape(2, LAYERS)
        ids = (first[:, None] + np.arange(K) * (1 + apart[:, None] % 16)) % EXPERTS
        ids = ids.astype(np.int32)
        place = life.blocks[position // options.block], position % options.block
        self.slots[place] = ids, life.name
        life.truth[position] = ids, self.version, life.name, False, self.mixed
        return ids

    def take(self):
        """(outputs of the scheduler, rows of the worker, lives) of the step that is oldest."""
        step, pending, sampled, lives = self.queue.pop(0)
        if pending is None:
            return engine.update_from_output(step, EMPTY_MODEL_RUNNER_OUTPUT), {}, {}
        rows = pending.process_output()
        output = ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={name: i for i, name in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            aux_output_connector_output=rows,
        )
        return engine.update_from_output(step, output), rows, lives


draw, counts, notes = random.Random(options.seed), collections.Counter(), []
engine, worker = scheduler(), Worker()
init_none_hash(lambda value: hashlib.sha256(repr(value).encode()).digest())
hasher = get_request_block_hasher(
    options.block, lambda value: hashlib.sha256(repr(value).encode()).digest()
)
shared = [random.Random(i).choices(range(VOCABULARY), k=LONGEST) for i in range(3)]
requests, following, number = {}, {}, 0  # following: the position that comes next


def add():
    """One whose prompt others have too, up to some point."""
    global number
    most = LONGEST - 24
    if draw.random() < 0.4:
        length = options.block * draw.randint(1, max(1, most // options.block))
    else:
        length = draw.randint(1, most)
    prompt = list(draw.choice(shared)[:length])
    if draw.random() < 0.25 and length > 2:
        prompt[length // 2 :] = [draw.randrange(VOCABULARY) for _ in range(length - length // 2)]
    parameters = SamplingParams(
        max_tokens=draw.choice((1, 2, 5, 12, 20)),
        ignore_eos=True,
        # As prompt_logprobs have it: blocks that are there are computed again.
        skip_reading_prefix_cache=draw.random() < 0.06,
        routed_experts_prompt_start=draw.choice((0, 0, 0, draw.randrange(length))),
    )
    salt = f"salt {draw.randrange(2)}" if draw.random() < 0.1 else None
    name, number = f"r{number}", number + 1
    request = Request(name, prompt, parameters, None, cache_salt=salt, block_hasher=hasher)
    requests[name] = request
    following[name] = parameters.routed_experts_prompt_start
    engine.add_request(request)


def update():
    """New weights, as a trainer brings them; and what is done about the cache, if anything is."""
    worker.version += 1
    worker.mixed = True
    worker.connector.capture.weights_changed()
    if draw.random() < options.flush:
        emptied = engine.reset_prefix_cache(reset_running_requests=True)
        counts[f"emptied: {emptied}"] += 1
        worker.mixed = not emptied
    elif draw.random() < 0.3:
        emptied = engine.reset_prefix_cache()
        counts[f"tried to empty: {emptied}"] += 1
        worker.mixed = not emptied


def judge(output, rows, lives):
    name, request = output.request_id, requests[output.request_id]
    found = output.routed_experts
    if found is not None and len(found):
        first = rows[name].token_start
        if first != following[name]:
            counts[f"WRONG {'again' if first < following[name] else 'left out'}"] += 1
            notes.append((name, first, following[name], request.num_preemptions, len(found)))
        following[name] = first + len(found)
        for position, row in enumerate(found, first):
            judge_row(name, position, row, lives[name].truth)
    if output.finish_reason is not None:
        counts["requests"] += 1
        if following[name] != request.num_tokens - 1:
            counts["WRONG number of rows"] += 1
        del requests[name], following[name]


def judge_row(name, position, row, truth):
    counts["rows"] += 1
    if position not in truth:
        counts["WRONG of no block"] += 1
        return
    ids, version, who, hit, mixed = truth[position]
    if (row == -1).all():
        counts[f"WRONG missing: {'hit' if hit else 'computed'}"] += 1
        notes.append((name, position, version, who, worker.version, "missing"))
    elif not (row == ids).all():
        counts[f"WRONG rows, {'hit' if hit else 'computed'}"] += 1
        notes.append((name, position, version, who, worker.version))
    else:
        counts[f"right, {'hit' if hit else 'computed'}"] += 1
        counts["right, hit behind new weights"] += hit and mixed


steps, ahead = 0, 1 if options.sync else 2
while requests or counts["rows"] < options.rows:
    while counts["rows"] < options.rows and len(requests) < draw.choice((1, 6, 12)):
        add()
    if engine.has_requests():
        worker.execute(engine.schedule())
        steps += 1
    while len(worker.queue) >= ahead or worker.queue and not engine.has_requests():
        outputs, rows, lives = worker.take()
        for each in outputs.values():
            for output in each.outputs:
                judge(output, rows, lives)
    if options.updates != "none" and steps % EVERY == 0:
        for _ in range(draw.choice((1, 1, 2))):
            update()
    if requests and draw.random() < 0.02:
        name = draw.choice(list(requests))
        engine.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        del requests[name], following[name]
        counts["aborted"] += 1

for each in notes[:12]:
    print(*each)
print(f"steps {steps}, versions {worker.version}, preempted {worker.preempted}")
for what, count in sorted(counts.items()):
    print(f"{count:9d}  {what}")
wrong = any("WRONG" in what for what in counts)
few = not counts["right, hit"] or not worker.preempted
few |= options.updates != "none" and not counts["right, hit behind new weights"]
few |= options.updates != "none" and options.flush > 0 and not counts["emptied: True"]
print("FAILED" if wrong or few else "PASSED")
raise SystemExit(bool(wrong or few))
