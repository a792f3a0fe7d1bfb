from importlib.util import find_spec

from sglang.srt.models import qwen3_moe


class Qwen3MoeForCausalLM(qwen3_moe.Qwen3MoeForCausalLM):
    """Its process is that of a scheduler; without plugins this is the first that it hears of us."""

    def __init__(self, *args, **kwargs):
        if find_spec("sglang.srt.plugins") is None:
            import routecap_sglang_cpu

            routecap_sglang_cpu.register()
        super().__init__(*args, **kwargs)


class WholeDraftModel(Qwen3MoeForCausalLM):
    """As a draft's, a Qwen3MoeForCausalLM would be taken for layers that predict from the target's
    hidden states."""


EntryClass = [Qwen3MoeForCausalLM, WholeDraftModel]
