"""A real engine in the place of the stand-in of rollout.py: a small mixture of experts of
transformers, with random weights that are the same in every process, captured by
routecap_transformers. `chosen` is what its routers choose, by a way that knows nothing of that."""

from typing import Any

import routecap
import routecap_transformers
import servers
import torch
from routecap import remote
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

SHAPE = {"layers": 4, "k": 2, "experts": 16}
VOCABULARY = 512


def model() -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=SHAPE["layers"],
        num_experts=SHAPE["experts"],
        num_experts_per_tok=SHAPE["k"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        moe_intermediate_size=32,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    # In doubles a token that is decoded and one that is prefilled see the same, but for 1e-15.
    made = Qwen3MoeForCausalLM(config).double().eval()
    made.set_experts_implementation("eager")  # others do not take doubles
    return made


class Rollout:
    def __init__(self, url: str, settings: dict[str, Any], shape: dict[str, int]) -> None:
        self._store, self._model = servers.connect(url, settings), model()
        self._capture = routecap_transformers.attach(self._model)
        self._texts: list[list[int]] = []

    def generate(self, seeds: list[int], lengths: list[int]) -> list[Any]:
        """References to the rows of texts of these lengths, a third of which is the prompt."""
        self._texts, written = [], []
        for seed, length in zip(seeds, lengths):
            torch.manual_seed(seed)
            prompt = torch.randint(VOCABULARY, (1, length // 3))
            text = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=length - prompt.shape[1],
                do_sample=True,
            )
            (routing,) = self._capture.take()
            written.append(remote.write(self._store, routing))
            self._texts += text.tolist()
        return written if self._store.scheme == "ray" else [each.to_dict() for each in written]

    def texts(self) -> list[list[int]]:
        """Of the last call of generate, as tokens."""
        return self._texts


def chosen(texts: list[list[int]]) -> list[routecap.Routing]:
    """The model's own router logits, of each text in one forward pass, and the largest of them."""
    whole, found = model(), []
    for text in texts:
        with torch.no_grad():
            logits = whole(torch.tensor([text[:-1]]), output_router_logits=True).router_logits
        ids = torch.stack([each.topk(SHAPE["k"], dim=-1).indices for each in logits], dim=1)
        found.append(
            routecap.Routing.from_arrays(ids.to(torch.uint8).numpy(), experts=SHAPE["experts"])
        )
    return found
