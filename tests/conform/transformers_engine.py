"""transformers with routecap.transformers, on the host: a batch is padded on the left.

folder: of the model; trained: it is that of examples/model, whose matrices are 8-bit floats.
activations: "float8": what goes into a matrix is rounded to 8 bits, with one scale for all tokens
of a step, as where scales are dynamic. So what else is in a batch changes how a request is rounded.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, __version__
from transformers.utils import logging

import routecap
from routecap import conform
from routecap.transformers import attach

sys.path.append(str(Path(__file__).resolve().parents[1] / "sglang_engine"))
import model as small  # noqa: E402

PAD = 0
TRAINED = Path(__file__).resolve().parents[2] / "examples/model/weights"


def to_float8(module, arguments):
    scale = arguments[0].abs().max() / torch.finfo(torch.float8_e4m3fn).max
    rounded = (arguments[0] / scale).to(torch.float8_e4m3fn).to(arguments[0].dtype) * scale
    return rounded, *arguments[1:]


def engine(dtype="float32", folder=None, trained="", activations=""):
    logging.set_verbosity_error()
    folder = TRAINED if trained else folder or small.make(tempfile.mkdtemp())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    for name, module in model.named_modules() if activations == "float8" else ():
        if isinstance(module, torch.nn.Linear) or name.endswith(".experts"):
            module.register_forward_pre_hook(to_float8)
    capture = attach(model)

    def generate(requests):
        found = [None] * len(requests)
        groups = {}
        for number, request in enumerate(requests):
            groups.setdefault((request.n, request.stop), []).append(number)
        for numbers in groups.values():
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

    return conform.Functions(
        f"transformers {__version__}, {'trained, ' if trained else ''}{dtype}, "
        f"{f'activations in {activations}, ' if activations else ''}"
        f"routecap {routecap.__version__}",
        generate,
        lambda output: output[0],
        lambda output: output[1],
        can={"n", "stop"},
    ), {
        "model": routecap.models.describe(Path(folder) / "config.json"),
        "vocabulary": json.loads((Path(folder) / "config.json").read_text())["vocab_size"],
        "live": routecap.doctor.routing_of_model(folder),
    }
