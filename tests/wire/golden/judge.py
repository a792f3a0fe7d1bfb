#!/usr/bin/env python3
"""Random routings with holes, between routecap and the projects' own functions: what routecap
writes they read, and what they write routecap reads, each cell and each hole.

judge.py FOLDER [ROUNDS]    FOLDER holds what README.md says; needs PyTorch and the package routecap
"""

import base64
import binascii
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Union

import numpy as np
import routecap
import torch

from make import functions

CODEC = SimpleNamespace(
    b64encode=lambda data, *_: base64.b64encode(data), b64decode=base64.b64decode
)
sys.modules["pybase64"] = CODEC  # what slime imports where it decodes


class Projects:
    """Single functions of the projects, without what they import."""

    def __init__(self, folder):
        def one(path, name, **names):
            [found] = functions(folder / path, [name], {"np": np, "pybase64": CODEC, **names})
            return found

        self.sglang_encode = one(
            "sglang/sglang/srt/managers/detokenizer_manager.py", "_b64_encode_per_request"
        )
        self.sglang_decode = one(
            "sglang/sglang/srt/state_capturer/routed_experts.py",
            "extract_routed_experts_from_meta_info",
        )
        self.areal = one(
            "areal/areal/engine/sglang_remote.py",
            "parse_generation_response",
            HttpGenerationResult=SimpleNamespace,
        )
        self.miles = one("miles/generate_endpoint_utils.py", "_decode_topk_buffer")
        self.slime = one("slime/misc.py", "decode_int32_meta_array", torch=torch)
        self.vllm = None
        if (folder / "vllm").exists():
            self.vllm = one("vllm/vllm/utils/serial_utils.py", "numpy2base64", io=io)
        self.prime_rl = one("prime_rl/routed_experts.py", "serialize_routed_experts")
        self.verifiers = one(
            "verifiers/verifiers/v1/graph.py",
            "_attribute_routed_experts",
            binascii=binascii,
            _replace_placeholder_routing_row=lambda *_: None,
        )
        self.megatron_encode, self.megatron_unwrap = functions(
            folder / "megatron_core/megatron/core/inference/inference_request.py",
            ["serialize_ndarray", "unwrap_serialized_tensors"],
            {"np": np},
        )
        self.nemo_encode, self.nemo_decode = functions(
            folder / "nemo_rl/routed_experts_codec.py",
            [
                "_MAGIC",
                "_WIRE_TORCH_DTYPES",
                "_TORCH_DTYPE_NAMES",
                "encode_routed_experts",
                "decode_routed_experts",
            ],
            {"np": np, "torch": torch, "base64": base64, "Union": Union, "Any": Any},
        )


def pairs(projects, ids, dtype):
    """For each format what a project writes of ids [rows, columns, k] with -1 in holes, or None
    where it does not, and functions of projects that read messages.
    """
    rows, columns, k = ids.shape
    wide = ids.astype(np.int32)

    def areal(text):
        meta = {"prompt_tokens": rows, "completion_tokens": 1, "routed_experts": text.decode()}
        meta |= {"finish_reason": {"type": "stop", "message": ""}, "output_token_logprobs": []}
        return projects.areal(None, {"meta_info": meta}).routed_experts

    def verifiers(text):
        node = SimpleNamespace(token_ids=[0] * rows, routed_experts=None)
        projects.verifiers(SimpleNamespace(nodes=[node]), [], [0], 0, json.loads(text))
        return node.routed_experts

    array = ids.astype(dtype)
    text = projects.vllm(array) if projects.vllm else None
    yield "vllm", text, [lambda t: np.load(io.BytesIO(base64.b64decode(t)))]
    yield (
        "sglang",
        projects.sglang_encode([torch.from_numpy(wide)])[0],
        [
            lambda t: projects.sglang_decode({"meta_info": {"routed_experts": t.decode()}}),
            areal,
            lambda t: projects.miles(t.decode(), rows, columns, -1),
            lambda t: projects.slime({"routed_experts": t.decode()}, "routed_experts").numpy(),
        ],
    )
    sent = {"routing_indices": ("ndarray", projects.megatron_encode(ids.astype(np.int16)))}
    lists = json.dumps(projects.megatron_unwrap(sent)["routing_indices"])
    yield (
        "megatron",
        lists,
        [lambda t: projects.nemo_decode(json.loads(t), torch.int32).numpy()],
    )
    yield (
        "nemo-rl",
        projects.nemo_encode(torch.from_numpy(ids.astype(np.int16))),
        [lambda t: projects.nemo_decode(t.decode(), torch.int32).numpy()],
    )
    # prime-rl refuses ids below 0.
    text = json.dumps(projects.prime_rl(array)) if ids.min() >= 0 else None
    yield "prime-rl", text, [verifiers]


def main(folder, rounds=200):
    projects, random = Projects(Path(folder)), np.random.default_rng(7)
    read_by_them = written = 0
    for _ in range(int(rounds)):
        experts = int(random.choice([8, 100, 128, 256, 300, 512]))
        k = int(random.choice([1, 2, 6, 8]))
        rows, columns = int(random.integers(1, 40)), int(random.integers(1, 7))
        ids = np.argsort(random.random((rows, columns, experts)), axis=-1)[..., :k]
        holes = random.random((rows, columns)) < random.choice([0, 0.1, 0.5])
        ids[holes] = -1
        signed = holes.any() or bool(random.integers(2))
        dtype = np.int16 if signed else np.uint8 if experts <= 256 else np.uint16
        routing = routecap.Routing.from_arrays(ids, experts=experts, valid=~holes)
        shape = {"columns": columns, "k": k, "rows": rows}
        for name, theirs, readers in pairs(projects, ids, dtype):
            if theirs is not None:
                hint = shape if name == "sglang" else {"rows": rows}
                read = routecap.Routing.from_wire(theirs, name, experts=experts, **hint)
                assert np.array_equal(read.ids(np.int64), ids), name
                assert np.array_equal(read.mask(), ~holes), name
                written += 1
            own = name in ("sglang", "megatron", "nemo-rl")  # a type of their own
            options = {} if own else {"dtype": np.dtype(dtype).name}
            ours = routing.to_wire(name, **options, allow=("reasons",))
            for reader in readers:
                assert np.array_equal(np.asarray(reader(ours)).reshape(ids.shape), ids), name
                read_by_them += 1
    print(f"{rounds} routings: the projects' functions wrote {written} and read {read_by_them}")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
