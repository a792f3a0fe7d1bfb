from sglang.srt.models.qwen3_moe import Qwen3MoeForCausalLM


class WholeDraftModel(Qwen3MoeForCausalLM):
    """As a draft's, a Qwen3MoeForCausalLM would be taken for layers that predict from the target's
    hidden states."""


EntryClass = [Qwen3MoeForCausalLM, WholeDraftModel]
