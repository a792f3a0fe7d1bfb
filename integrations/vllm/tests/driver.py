"""One request, driven by hand, step by step, as vLLM's runner would drive it."""

from types import SimpleNamespace

import numpy as np
import routecap
import torch
from engine import Hidden, Model

from routecap_vllm import routed_experts_capturer as module
from routecap_vllm.routed_experts_capturer import Options

PROMPT = [10, 11, 12]
EVERY = [0, 1, 2, 3]
PLACES = {"positions on the host": {}, "positions on a device": {"kind": Hidden}}
PLACES["positions on a device, and nothing else known"] = {"kind": Hidden, "computed": False}


def sampling(**parameters):
    defaults = {"min_tokens": 0, "max_tokens": 50, "stop_token_ids": None, "eos_token_id": None}
    return SimpleNamespace(**(defaults | parameters))


class Driver:
    """One request, step by step. It counts the calls that cut."""

    def __init__(self, monkeypatch, kind=torch.Tensor, computed=True, keep_ended=0, **parameters):
        self.model, self.kind, self.computed = Model(), kind, computed
        module.set_options(Options(slots=2, keep_ended=keep_ended))
        self.capturer = module.init_routed_experts_capturer_with_shared_cache(
            True, self.model.model_config, 0, 64, 512, "cpu"
        )
        module.bind_routing_capture_to_model(self.model)
        self.request = SimpleNamespace(num_prompt_tokens=3, output_token_ids=[])
        self.request.sampling_params = sampling(**parameters)
        self.cuts = []
        truncate = routecap.Request.truncate

        def counted(request, rows):
            self.cuts.append(rows)
            truncate(request, rows)

        monkeypatch.setattr(routecap.Request, "truncate", counted)

    def issue(self, first, tokens, silent=(), name="a"):
        for index, layer in enumerate(filter(None, self.model.moe)):
            layer.skip = index in silent
        positions = torch.arange(first, first + len(tokens))
        self.model(torch.tensor(tokens), positions)
        if self.computed and name == "a":
            self.request.num_computed_tokens = first
        seen = positions.as_subclass(self.kind)
        module.issue_routing_d2h_copy([name], {name: len(tokens)}, seen, positions)

    def extract(self, outputs):
        self.request.output_token_ids[:] = outputs
        lengths = np.array([self.request.num_prompt_tokens + len(outputs)])
        result = module.extract_routed_experts_for_current_batch(
            ["a"], {"a": self.request}, {"a": 0}, lengths, 512
        )
        return None if result is None else result["a"]

    def step(self, first, tokens, outputs, silent=()):
        self.capturer.finalize_pending_copy()
        self.issue(first, tokens, silent)
        return self.extract(outputs)

    def expected(self, tokens, holes=()):
        expected = self.model.expected(tokens)
        for position, layers in holes:
            expected[position, layers] = -1
        return expected

    def rows(self):
        return self.capturer.get_routed_experts("a", free_slot=False)
