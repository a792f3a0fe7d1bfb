"""Figures of experts by hooks of PyTorch alone: what people write who have no routecap. It imports
nothing of routecap, and counts token by token.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F


class HookCounts:
    """Hooks on the experts of a Qwen3-MoE. `passes` has for each forward pass, and each layer of
    it, the experts of each token, the router's weights and the norms of what the experts return:
    three tensors [lines * columns, k].
    """

    def __init__(self, model: Any) -> None:
        self.passes: list[list[tuple[torch.Tensor, ...]]] = []
        self._undo = [model.register_forward_pre_hook(lambda *given: self.passes.append([]))]
        for layer in model.model.layers:
            hook = layer.mlp.experts.register_forward_pre_hook(self._see, with_kwargs=True)
            self._undo.append(hook)

    @torch.no_grad()
    def _see(self, module: Any, args: Any, kwargs: Any) -> None:
        states, ids, weights = (*args, *kwargs.values())
        norms = torch.empty(ids.shape, dtype=torch.float64)
        for token, column in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
            expert = ids[token, column]
            gate, up = F.linear(states[token], module.gate_up_proj[expert]).chunk(2)
            out = F.linear(module.act_fn(gate) * up, module.down_proj[expert])
            norms[token, column] = out.double().norm()
        self.passes[-1].append((ids.clone(), weights.detach().double(), norms))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for each in self._undo:
            each.remove()

    def arrays(self, passes: Sequence[int], lines: int) -> list[Any]:
        """[lines, columns, layers, k] of some passes, side by side: ids, weights, norms."""
        return [
            torch.cat(
                [
                    torch.stack([layer[kind] for layer in self.passes[number]], 1).unflatten(
                        0, (lines, -1)
                    )
                    for number in passes
                ],
                dim=1,
            ).numpy()
            for kind in range(3)
        ]


class Counted:
    """What hooks saw in the tokens that a mask keeps, a mask [lines, columns] for each pass."""

    def __init__(self, hooks: HookCounts, masks: Sequence[Any]) -> None:
        self.tokens: Counter[tuple[int, int]] = Counter()
        """Of each (layer, expert)."""
        self.pairs: Counter[tuple[int, int, int]] = Counter()
        self.weighed: defaultdict[tuple[int, int, int], float] = defaultdict(float)
        self.steps: list[list[set[int]]] = []
        """Of each pass and layer, the experts that some token chose."""
        added: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        for layers, mask in zip(hooks.passes, masks, strict=True):
            kept = torch.as_tensor(mask).flatten().bool().tolist()
            self.steps.append([set() for _ in layers])
            for layer, found in enumerate(layers):
                ids, weights, norms = (each.tolist() for each in found)
                for keep, chosen, weight, norm in zip(kept, ids, weights, norms, strict=True):
                    if not keep:
                        continue
                    self.steps[-1][layer].update(chosen)
                    for expert, gate, length in zip(chosen, weight, norm):
                        self.tokens[layer, expert] += 1
                        added[layer, expert].append(gate * length)
                        for other, gate_of_other in zip(chosen, weight):
                            self.pairs[layer, expert, other] += 1
                            self.weighed[layer, expert, other] += gate * gate_of_other
        self.importance = {cell: sum(each) / len(each) for cell, each in added.items()}
