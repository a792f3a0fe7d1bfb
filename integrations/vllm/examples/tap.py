"""What captures the routing of every request in a vLLM worker: worker.py has the worker.

It drives the capturer itself, as it has to supply the rows of cached prefixes.
`routecap_vllm.routed_experts_capturer`, which dropin.py uses, does not know them; it stands in for
a module that vLLM had until 0.21, and finds the routers of more kinds of layers than are here.
"""

from collections import deque
from functools import partial

import routecap
from vllm.model_executor.layers.fused_moe.layer import MoERunner


class Sequence:
    """A request: open as long as it has no routing.

    Those that wait and those that were preempted are open too.
    """

    def __init__(self, request):
        self.request = request
        self.routing = None


class RoutingTap:
    """One for each worker: a capturer, fed by the model's routers and the scheduler's output.

    Used by the engine's thread only.
    """

    KEPT = 1024  # ended requests whose routing nobody has taken yet

    def __init__(self, model, model_config, rows):
        """model: loaded. rows: the most tokens of one step."""
        routers = {
            module.layer_id: module.router
            for module in model.modules()
            if isinstance(module, MoERunner)
        }
        self.capturer = routecap.Capturer(
            backend="host",  # on a GPU "cuda", and the device; all calls are the same
            layers=len(routers),
            layer_map=sorted(routers),
            k=model_config.get_num_experts_per_tok(),
            experts=model_config.get_num_experts(),
            rows=rows,
        )
        self.supply_prefixes = True
        self.tag = 0  # kept with every row from now on: a version of the weights, for instance
        self._open = {}  # by the engine's id
        self._ended = {}
        self._computed_by = {}  # block of the KV cache: the sequence that filled it last
        self._in_flight = deque()  # steps that may still be in a slot

        for layer, (_, router) in enumerate(sorted(routers.items())):
            # Called with the ids as chosen, before load balancing maps them.
            router.set_capture_fn(partial(self.capturer.record, layer))
        model.register_forward_pre_hook(
            lambda module, args, kwargs: self.capturer.begin(kwargs["positions"].shape[-1]),
            with_kwargs=True,
        )
        model.register_forward_hook(lambda *_: self.capturer.snapshot())

    def step(self, scheduled, runner):
        """After a forward pass. scheduled: the scheduler's output. runner: has the batch in the
        order of its rows.
        """
        for request_id in scheduled.finished_req_ids:  # in the step before, or aborted since
            self._end(request_id)
        if scheduled.total_num_scheduled_tokens == 0:
            return  # no forward pass
        for new in scheduled.scheduled_new_reqs:
            self._open[new.req_id] = Sequence(self.capturer.open())

        if len(self._in_flight) == self.capturer.slots:
            # It has landed long ago; a step that finds no slot would be lost.
            self._in_flight.popleft().wait()
        spans = self._spans(scheduled, runner.input_batch)
        self._in_flight.append(self.capturer.issue(spans, tag=self.tag))
        cache = runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec
        self._attach_prefixes(scheduled, cache.block_size)

    def _spans(self, scheduled, batch):
        """Whose the rows of the step are: each request's lie together, at the positions from its
        computed tokens on.

        After a preemption positions come again. They keep the rows under which their tokens were
        sampled.
        """
        spans, count, row = routecap.spans(len(batch.req_ids)), 0, 0
        for request_id, position in zip(batch.req_ids, batch.num_computed_tokens_cpu):
            rows = scheduled.num_scheduled_tokens[request_id]
            # It may have ended, and the step was scheduled ahead.
            if sequence := self._open.get(request_id):
                spans[count] = (sequence.request.handle, position, 0, row, rows, 0, 0)
                count += 1
            row += rows
        return spans[:count]

    def _attach_prefixes(self, scheduled, block_size):
        """Supply the rows of tokens that came out of the prefix cache, from the request that
        computed the last of their blocks: it has them all.

        Nobody else was given that block since, or it would not have been found in the cache.
        """
        beginning = [
            (new.req_id, new.block_ids, new.num_computed_tokens)
            for new in scheduled.scheduled_new_reqs
        ]
        cached = scheduled.scheduled_cached_reqs
        for request_id, block_ids, tokens in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens
        ):
            if request_id in cached.resumed_req_ids:  # after a preemption, with other blocks
                beginning.append((request_id, block_ids, tokens))
            elif block_ids is not None:
                self._computed_by.update(dict.fromkeys(block_ids[0], self._open.get(request_id)))
        for request_id, block_ids, tokens in beginning:
            blocks = block_ids[0][tokens // block_size :]
            self._computed_by.update(dict.fromkeys(blocks, self._open.get(request_id)))

        for request_id, block_ids, tokens in beginning if self.supply_prefixes else ():
            sequence = self._open.get(request_id)
            last = block_ids[0][(tokens - 1) // block_size] if tokens else None
            source = self._computed_by.get(last)
            if sequence is None or source is None or source is sequence:
                continue
            routing = source.routing
            if routing is None:  # it still runs: its rows so far, those in flight included
                routing = source.request.fork(tokens).finish()
            sequence.request.attach(routing, tokens)

    def _end(self, request_id):
        sequence = self._open.pop(request_id, None)
        if sequence is not None:
            sequence.routing = sequence.request.finish()  # waits for nothing
            self._ended[request_id] = sequence
            while len(self._ended) > self.KEPT:
                del self._ended[next(iter(self._ended))]

    def take(self, request_id, tokens):
        """The routing of a request that has ended, whether the scheduler has said so or not; once."""
        self._end(request_id)
        sequence = self._ended.pop(request_id, None)
        if sequence is None:
            return None
        sequence.routing.wait()
        # A step that was scheduled ahead may have computed one row more.
        return sequence.routing[: tokens - 1]
