"""A vLLM worker that captures the routing of every request, for engines with vLLM's V1 model
runner. To be taken as it is, with tap.py:

    llm = LLM(model, worker_cls="worker.CPURoutingWorker")
    ...
    routing = llm.collective_rpc("take_routing", args=(request_id, tokens))[0]      # when the request has ended

`request_id` is the engine's own, which add_request returns: what a caller chose, and a suffix.
`tokens` is the length of the sequence, prompt and output. The routing has a row, [layers, k], for
each token but the last, which was never input. Rows that nobody captured are missing in it, and it
says so (routing.missing).
"""

from vllm.v1.worker.cpu_worker import CPUWorker

from tap import RoutingTap


class RoutingWorker:
    """What a worker class of vLLM gets in addition:
    `class GPURoutingWorker(RoutingWorker, vllm.v1.worker.gpu_worker.Worker)`, for instance.
    """

    def __init__(self, vllm_config, *args, **kwargs):
        parallel = vllm_config.parallel_config
        if (
            vllm_config.speculative_config
            or vllm_config.kv_transfer_config
            or parallel.data_parallel_size > 1
            or parallel.use_ubatching
        ):
            raise ValueError(
                "rows of drafts, of tokens that other engines computed, and of parts of a batch are"
                " not captured here"
            )
        super().__init__(vllm_config, *args, **kwargs)
        self.tap = None

    def load_model(self, *args, **kwargs):
        super().load_model(*args, **kwargs)
        config = self.vllm_config
        self.tap = RoutingTap(
            self.model_runner.model,
            config.model_config,
            config.scheduler_config.max_num_batched_tokens,
        )

    def execute_model(self, scheduler_output):
        output = super().execute_model(scheduler_output)
        self.tap.step(scheduler_output, self.model_runner)
        return output

    def shutdown(self):
        super().shutdown()
        if self.tap is not None:
            self.tap.capturer.close()

    def take_routing(self, request_id, tokens):
        return self.tap.take(request_id, tokens)


class CPURoutingWorker(RoutingWorker, CPUWorker):
    pass
