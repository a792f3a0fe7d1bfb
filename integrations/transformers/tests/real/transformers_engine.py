"""transformers with routecap_transformers, on the host: a batch is padded on the left.

folder: of the model; trained: it is that of tests/model, whose matrices are 8-bit floats.
activations: "float8": what goes into a matrix is rounded to 8 bits, with one scale for all tokens
of a step, as where scales are dynamic. So what else is in a batch changes how a request is rounded.
adapter: there is one, and the weights can be updated: both change matrices of attention by some of
low rank.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, __version__
from transformers.utils import logging

import routecap
from routecap_tools import conform
from routecap_tools.doctor import routing_of_model
from routecap_transformers import attach

sys.path.append(str(Path(__file__).resolve().parents[4] / "tests/engines"))
import small_checkpoint as small  # noqa: E402

PAD = 0
TRAINED = Path(__file__).resolve().parents[4] / "tests/model/weights"


def to_float8(module, arguments):
    scale = arguments[0].abs().max() / torch.finfo(torch.float8_e4m3fn).max
    rounded = (arguments[0] / scale).to(torch.float8_e4m3fn).to(arguments[0].dtype) * scale
    return rounded, *arguments[1:]


class Changes:
    """Changes of low rank of the matrices of attention, for an adapter and for each update."""

    def __init__(self, model):
        self._plain = {
            name: (parameter, parameter.detach().clone())
            for name, parameter in model.named_parameters()
            if "self_attn" in name and parameter.ndim == 2
        }
        self.updates, self._now = 0, (0, "")

    def update(self):
        self.updates += 1

    def go_to(self, updates):
        """The weights after so many."""
        self.updates = updates

    @torch.no_grad()
    def use(self, adapter):
        if self._now == (self.updates, adapter):
            return
        self._now = self.updates, adapter
        generator = torch.Generator()
        for parameter, plain in self._plain.values():
            parameter.copy_(plain)
            for seed in [*range(1, self.updates + 1), *([1000] if adapter else [])]:
                generator.manual_seed(seed)
                down = torch.randn(plain.shape[0], 4, generator=generator)
                up = torch.randn(4, plain.shape[1], generator=generator)
                parameter += (0.25 * down @ up).to(plain.dtype)


def engine(dtype="float32", folder=None, trained="", activations="", adapter=""):
    logging.set_verbosity_error()
    folder = TRAINED if trained else folder or small.make(tempfile.mkdtemp())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    for name, module in model.named_modules() if activations == "float8" else ():
        if isinstance(module, torch.nn.Linear) or name.endswith(".experts"):
            module.register_forward_pre_hook(to_float8)
    capture = attach(model)
    changes = Changes(model) if adapter else None

    def generate(requests):
        found = [None] * len(requests)
        groups = {}
        for number, request in enumerate(requests):
            key = request.n, request.stop, request.adapter
            groups.setdefault(key, []).append(number)
        for (_, _, used), numbers in groups.items():
            if changes is not None:
                changes.use(used)
            together([requests[number] for number in numbers], numbers, found)
        return found

    def together(requests, numbers, found):
        longest = max(len(request.prompt) for request in requests)
        tokens = torch.full((len(requests), longest), PAD)
        for row, request in enumerate(requests):
            tokens[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
        mask = torch.zeros_like(tokens)
        for row, request in enumerate(requests):
            mask[row, longest - len(request.prompt) :] = 1
        n = requests[0].n
        out = model.generate(
            tokens,
            attention_mask=mask,
            max_new_tokens=max(request.max_tokens for request in requests),
            do_sample=n > 1,
            num_return_sequences=n,
            pad_token_id=PAD,
            eos_token_id=requests[0].stop,
        )
        routings = capture.take()
        for row, (number, request) in enumerate(zip(numbers, requests)):
            found[number] = []
            for choice in range(n):
                new = out[row * n + choice, longest:].tolist()[: request.max_tokens]
                if request.stop in new:
                    new = new[: new.index(request.stop) + 1]
                whole = [*request.prompt, *new]
                ids = routings[row * n + choice].ids()[: len(whole) - 1]
                found[number].append((ids, whole))

    made = conform.Functions(
        f"transformers {__version__}, {'trained, ' if trained else ''}{dtype}, "
        f"{f'activations in {activations}, ' if activations else ''}"
        f"routecap {routecap.__version__}",
        generate,
        lambda output: output[0],
        lambda output: output[1],
        can={"n", "stop", *(["adapter"] if adapter else [])},
        update=changes.update if changes is not None else None,
    )
    return made, {
        "model": routecap.models.describe(Path(folder) / "config.json"),
        "vocabulary": json.loads((Path(folder) / "config.json").read_text())["vocab_size"],
        "live": routing_of_model(folder),
        **({"adapter": "adapter", "use": changes.go_to} if adapter else {}),
    }
