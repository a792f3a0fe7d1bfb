"""Requests of an engine whose scheduler tells who ends, one row each a step."""

from types import SimpleNamespace

import torch
from engine import Model

from routecap_vllm import routed_experts_capturer as module


def request(**extra_args):
    return SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args=extra_args or None, stop=None)
    )


class Batch:
    """Requests that decode together, each from a prompt of one token on."""

    def __init__(self, start, experts=64, options=None, max_model_len=512, **requests):
        self.model = Model(experts=experts)
        start(self.model, options=options, blind=True, max_model_len=max_model_len)
        self.capturer = module.get_global_experts_capturer()
        self.capturer.tell_ends(requests)
        self.names = list(requests)
        self.tokens = {name: [] for name in requests}
        self.positions = torch.zeros(64, dtype=torch.int64)

    def step(self, names=None, tokens=None):
        """A further token of each; those that `tokens` says, or tokens of its own."""
        names = self.names if names is None else names
        tokens = tokens or [
            10 + 7 * index + len(self.tokens[name]) for index, name in enumerate(names)
        ]
        for index, name in enumerate(names):
            self.positions[index] = len(self.tokens[name])
            self.tokens[name].append(tokens[index])
        n = len(names)
        self.capturer.finalize_pending_copy()
        self.model(torch.tensor(tokens), self.positions[:n].clone())
        module.issue_routing_d2h_copy(
            names, dict.fromkeys(names, 1), self.positions, self.positions
        )
        if ticket := self.capturer._requests.last_ticket:
            self.capturer.capturer.issued(ticket).wait()

    def expected(self, name, versions=0):
        return self.model.expected(self.tokens[name], versions)
