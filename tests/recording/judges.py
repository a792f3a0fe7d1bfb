#!/usr/bin/env python3
"""routecap_layer_route against the routers of transformers: judges that nobody here wrote.

    python3 tests/recording/judges.py path/to/libroutecap.so.1 [--backend host|cuda]

Each router class is built from a small configuration with random weights and fed random hidden
states; the library gets the logits that the class computed and must choose the experts that the
class chose, with its weights. A row in which they differ must be a near tie of the keys that
reference.py computes (torch.topk leaves the order of ties open), and is counted. Names which
routers judged and which the installed version of transformers lacks. Exit status 77 where torch or
transformers is missing.
"""

import argparse
import ast
import importlib
import inspect
import os
import sys
from dataclasses import dataclass

try:
    import torch
    import transformers
    from torch.nn import functional
except ImportError as error:
    print(f"judges: not run, no torch or no transformers: {error}")
    sys.exit(77)

import numpy as np

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import reference as ref  # noqa: E402
from route import BF16, F32, METHODS, Bench, Case, Checks, memory_of, rc  # noqa: E402

ROWS, HIDDEN, TOKENS = 256, 64, 97


@dataclass
class Judge:
    """A router class, by the names that it has had, and what the library is told about it."""

    module: str  # in transformers.models
    classes: tuple  # of the router, the newest first
    method: int
    experts: int
    k: int
    groups: int = 1
    kept: int = 1
    scale: float = 1.0
    norm: bool | None = None  # norm_topk_prob, where the class looks at it
    # Its choice and weights are defined by float32 arithmetic on bfloat16 logits too.
    bf16: bool = False
    settings: tuple = ()  # other fields of the configuration


# Module, class, method, experts, k, and what else is to be said; an indented line goes on.
TABLE = """
mixtral        MixtralTopKRouter      SOFTMAX_RENORMALIZE   8  2  bf16=True
qwen2_moe      Qwen2MoeTopKRouter     SOFTMAX              64  8  norm=False bf16=True
qwen3_moe      Qwen3MoeTopKRouter     SOFTMAX_RENORMALIZE 128  8  norm=True bf16=True
qwen3_next     Qwen3NextTopKRouter    SOFTMAX_RENORMALIZE 512 10  norm=True bf16=True
olmoe          OlmoeTopKRouter        SOFTMAX              64  8  norm=False bf16=True
deepseek_v2    DeepseekV2TopkRouter/DeepseekV2MoEGate DEEPSEEK_V2 160 6 groups=8 kept=3 scale=16.0
    topk_method='group_limited_greedy'
deepseek_v3    DeepseekV3TopkRouter   DEEPSEEK_V3         256  8  groups=8 kept=4 scale=2.5 norm=True
deepseek_v3    DeepseekV3TopkRouter   DEEPSEEK_V3         384  8  scale=2.827 norm=True
deepseek_v4    DeepseekV4TopKRouter   DEEPSEEK_V4         384  6  scale=2.5
deepseek_v4    DeepseekV4HashRouter   DEEPSEEK_V4         256  6  scale=1.5
gpt_oss        GptOssTopKRouter       TOPK_SOFTMAX        128  4  bf16=True
llama4         Llama4Router           TOPK_SIGMOID        128  1  bf16=True
minimax        MiniMaxTopKRouter      SOFTMAX_RENORMALIZE  32  2  bf16=True
minimax_m2     MiniMaxM2TopKRouter    SIGMOID_RENORMALIZE 256  8  bf16=True
ernie4_5_moe   Ernie4_5_MoeTopKRouter ERNIE                64  6
ernie4_5_moe   Ernie4_5_MoeTopKRouter ERNIE                64  8  moe_norm_min=0.5
nemotron_h     NemotronHTopkRouter    DEEPSEEK_V3         512 22  scale=5.0 norm=True
glm4_moe       Glm4MoeTopkRouter      DEEPSEEK_V3         160  8  scale=2.5 norm=True
hunyuan_v1_moe HunYuanMoEV1Gate       SOFTMAX_RENORMALIZE  64  8
longcat_flash  LongcatFlashTopkRouter SOFTMAX             768 12  scale=6.0 zero_expert_num=256
"""


def judge_of(line):
    """A line of the table. What Judge has no field for is a field of the configuration."""
    module, classes, method, experts, k, *more = line.split()
    said = {name: ast.literal_eval(value) for name, value in (each.split("=") for each in more)}
    known = {name: said.pop(name) for name in [*said] if name in Judge.__dataclass_fields__}
    method = getattr(rc, f"METHOD_{method}")
    known["settings"] = tuple(said.items())
    return Judge(module, classes.split("/"), method, int(experts), int(k), **known)


ROUTERS = [judge_of(line) for line in TABLE.strip().replace("\n    ", " ").splitlines()]

ALIASES = {  # fields of configurations that mean the same
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "k": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "groups": ("n_group",),
    "kept": ("topk_group",),
    "scale": ("routed_scaling_factor",),
    "norm": ("norm_topk_prob",),
}


class Missing(Exception):
    """The installed transformers does not have this router, or not in a form that is known here."""


def find(judge):
    """The router class and a configuration for it."""
    try:
        modeling = importlib.import_module(
            f"transformers.models.{judge.module}.modeling_{judge.module}"
        )
        configuration = importlib.import_module(
            f"transformers.models.{judge.module}.configuration_{judge.module}"
        )
    except ImportError as error:
        raise Missing(f"no module: {error}") from error
    router = next(
        (getattr(modeling, name) for name in judge.classes if hasattr(modeling, name)), None
    )
    if router is None:
        raise Missing(f"its module has no class {' or '.join(judge.classes)}")
    configurations = [
        c
        for name, c in vars(configuration).items()
        if name.endswith("Config") and c.__module__ == configuration.__name__
    ]
    if not configurations:
        raise Missing("its module has no configuration")
    config = sorted(
        configurations, key=lambda c: (not c.__name__.endswith("TextConfig"), len(c.__name__))
    )[0]()
    fields = {
        "experts": judge.experts - dict(judge.settings).get("zero_expert_num", 0),
        "k": judge.k,
        "groups": judge.groups,
        "kept": judge.kept,
        "scale": judge.scale,
        "norm": judge.norm,
    }
    for name, value in fields.items():
        for alias in ALIASES[name]:
            if value is not None and hasattr(config, alias):
                setattr(config, alias, value)
    for name, value in (("hidden_size", HIDDEN), ("vocab_size", TOKENS), *judge.settings):
        setattr(config, name, value)
    return router, config


def build(router, config, dtype, device, generator):
    """A router with random weights; its correction bias is float32, as the classes keep it, and
    large enough to change choices.
    """
    module = router(config)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        spread = 0.05 if "correction_bias" in name else 0.3
        tensor.requires_grad_(False)
        if tensor.is_floating_point():
            tensor.data = torch.randn(tensor.shape, generator=generator) * spread
            tensor.data = tensor.data.to(torch.float32 if "correction_bias" in name else dtype)
        else:
            tensor.data = torch.rand(
                tensor.shape[0], config.num_local_experts, generator=generator
            ).argsort(1)[:, : tensor.shape[1]]
    return module.to(device).eval()


def ask(judge, module, hidden, bias, tokens):
    """What the class says of hidden states: logits, ids and weights."""
    extra = {"e_score_correction_bias": bias, "input_ids": tokens}
    names = [
        name for name in inspect.signature(module.forward).parameters if name != "hidden_states"
    ]
    if not set(names) <= set(extra):
        raise Missing(f"forward takes {names}")
    with torch.no_grad():
        try:
            given = module(hidden, *(extra[name] for name in names))
        except ValueError:  # some unpack a batch, a sequence and the hidden size; others take a softmax over dimension 1
            given = module(hidden[None], *(extra[name] for name in names))
    given = [
        tensor.reshape(-1, tensor.shape[-1])
        for tensor in (given if isinstance(given, tuple) else (given,))
    ]

    linear = next((part for part in module.modules() if isinstance(part, torch.nn.Linear)), module)
    computed = functional.linear(hidden, linear.weight, getattr(linear, "bias", None))
    full = [tensor for tensor in given if tensor.shape[1] == judge.experts]
    logits = next(
        (
            tensor
            for tensor in full
            if torch.allclose(tensor.float(), computed.float(), rtol=0.02, atol=0.02)
        ),
        None,
    )
    scores = next((tensor for tensor in full if tensor is not logits), None)
    if logits is None:  # the class keeps them to itself, as LongCat does and older gpt-oss
        logits = computed
    ids = next((tensor for tensor in given if not tensor.is_floating_point()), None)
    if ids is None and scores is not None:  # Llama 4: scores of all experts, 0 for those not chosen
        ids = scores.topk(judge.k, dim=1).indices
    if ids is None or ids.shape[1] != judge.k:
        raise Missing(f"forward returns {[tuple(tensor.shape) for tensor in given]}")
    weights = next(
        (t for t in given if t.is_floating_point() and t.shape[1] == judge.k != judge.experts), None
    )
    if weights is None and scores is not None:
        weights = scores.gather(1, ids)
    return logits, ids, weights


def try_judge(judge, dtype, lib, memory, checks):
    """One router, in one dtype. Returns what there is to say about it."""
    device = "cuda" if memory.backend == rc.BACKEND_CUDA else "cpu"
    generator = torch.Generator().manual_seed(20261121)
    router, config = find(judge)
    module = build(router, config, dtype, device, generator)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator).to(dtype).to(device)
    own = [
        tensor
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if name.endswith("e_score_correction_bias")
    ]
    bias = (
        own[0].data.reshape(-1)
        if own
        else (torch.randn(judge.experts, generator=generator) * 0.05).to(device)
    )
    tokens = torch.randint(0, TOKENS, (ROWS,), generator=generator).to(device)
    logits, ids, weights = ask(judge, module, hidden, bias, tokens)

    takes_bias = (
        bool(own) or "e_score_correction_bias" in inspect.signature(module.forward).parameters
    )
    described = METHODS[judge.method]
    told = ref.Router(
        described.score,
        described.flags,
        described.group_score,
        judge.groups,
        judge.kept,
        judge.scale,
        described.floor,
    )
    if judge.method == rc.METHOD_ERNIE:
        told.floor = float(np.float32(config.moe_norm_min))
    if takes_bias:
        told.bias = bias.float().cpu().numpy()
    elements = (
        logits.view(torch.int16).cpu().numpy().view(np.uint16)
        if logits.dtype == torch.bfloat16
        else logits.float().cpu().numpy()
    )
    case = Case(
        f"{router.__name__} {dtype}",
        told,
        logits.float().cpu().numpy(),
        elements,
        BF16 if logits.dtype == torch.bfloat16 else F32,
        judge.method,
        bias=told.bias,
    )
    if getattr(module, "tid2eid", None) is not None:
        told.hash_table, case.tokens = (
            module.tid2eid.cpu().numpy().astype(np.int32),
            tokens.cpu().numpy(),
        )
    with Bench(lib, memory, checks, 1, judge.k, judge.experts, ROWS) as bench:
        ((chosen, got),) = bench.run([case])

    # The class's own order is open where it says sorted=False, so its ids are ordered here.
    want = ref.route(case.values, told, judge.k, case.tokens)
    theirs = ids.cpu().numpy()
    differ = np.flatnonzero(~ref.same_sets(chosen, theirs))
    wrong = []
    for row in differ:
        ordered = theirs[row][np.lexsort((theirs[row], -want.keys[row][theirs[row]]))]
        text = ref.judge(want, row, ordered, lower_id_wins=False)
        if text is not None:
            wrong.append(
                (
                    row,
                    (
                        f"the class chose {sorted(theirs[row].tolist())}, the library"
                        f" {sorted(chosen[row].tolist())}; {text}"
                    ),
                )
            )
    checks.check(
        not wrong,
        lambda: (
            f"{case.label}: {len(wrong)} rows are chosen otherwise, the first row {wrong[0][0]}:"
            f" {wrong[0][1]}"
        ),
    )
    checks.check(len(differ) < ROWS // 2, f"{case.label}: nearly all rows are near ties")
    if weights is not None:
        same = np.setdiff1d(np.arange(ROWS), differ)
        got = got[64:-64].reshape(ROWS, judge.k)
        mine = np.zeros(want.scores.shape, dtype=np.float32)
        np.put_along_axis(mine, chosen, got, axis=1)
        mine = np.take_along_axis(mine, theirs, axis=1)
        their_weights = weights.float().cpu().numpy()
        tolerance = 1e-5 if weights.dtype == torch.float32 else 2**-7
        near = np.isclose(mine[same], their_weights[same], rtol=tolerance, atol=1e-8)
        checks.check(
            near.all(),
            lambda: (
                f"{case.label}: weights {mine[same][~near][:4]} instead of"
                f" {their_weights[same][~near][:4]}"
            ),
        )
    return f"{judge.experts} experts, k {judge.k}: {ROWS} rows, {len(differ)} near ties" + (
        "" if weights is not None else ", no weights"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--backend", choices=("host", "cuda"), default="host")
    arguments = parser.parse_args()
    memory, missing = memory_of(arguments.backend)
    if memory is None:
        print(f"judges: not run, {missing}")
        return 77
    checks, lib, judged, lacking = Checks(), rc.Library(arguments.library), 0, []
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for judge in ROUTERS:
        for dtype in (torch.float32, torch.bfloat16)[: 2 if judge.bf16 else 1]:
            name = f"{'/'.join(judge.classes)} {str(dtype)[6:]}"
            try:
                print(
                    f"judged by {name}: {try_judge(judge, dtype, lib, memory, checks)}", flush=True
                )
                judged += 1
            except Missing as error:
                lacking.append(f"{name}: {error}")
            except Exception as error:  # a class that changed so far that it cannot be asked is reported, and judges nothing
                checks.check(False, f"{name}: {type(error).__name__}: {error}")
    for line in lacking:
        print(f"lacking {line}")
    checks.check(judged > 0, "no router judged")
    return checks.close()


if __name__ == "__main__":
    sys.exit(main())
