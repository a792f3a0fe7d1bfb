"""The same with `routecap_vllm.routed_experts_capturer`, for engines that have calls of vLLM 0.21's
module of that name: where they belong.

It needs less of the engine than tap.py and gives less: rows of tokens that came out of the prefix
cache are missing.
"""

from routecap_vllm import routed_experts_capturer as routed_experts
from vllm.v1.worker.cpu_worker import CPUWorker


class DropInWorker(CPUWorker):
    def load_model(self, *args, **kwargs):
        super().load_model(*args, **kwargs)
        model, most = (
            self.vllm_config.model_config,
            self.vllm_config.scheduler_config.max_num_batched_tokens,
        )
        routed_experts.set_options(
            routed_experts.Options(keep_ended=1024)
        )  # nobody extracts them in the loop here
        self.tap = routed_experts.init_routed_experts_capturer_with_shared_cache(
            True, model, 0, most, model.max_model_len, self.device
        )
        routed_experts.bind_routing_capture_to_model(self.model_runner.model)

    def execute_model(self, scheduler_output):
        routed_experts.free_routing_buffers(
            scheduler_output.finished_req_ids, scheduler_output.preempted_req_ids
        )
        self.tap.finalize_pending_copy()
        output = super().execute_model(scheduler_output)
        runner, counts = self.model_runner, scheduler_output.num_scheduled_tokens
        if counts:
            routed_experts.issue_routing_d2h_copy(
                runner.input_batch.req_ids, counts, runner.positions, None
            )
        return output

    def take_routing(self, request_id, tokens):
        routing = routed_experts.routing_of(request_id)
        self.tap.get_host_cache().free_request(request_id)
        return None if routing is None else routing[: tokens - 1]
