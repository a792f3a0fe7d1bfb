#!/usr/bin/env python3
"""Writes the golden files: messages of ids (5 * row + 3 * column + i) % experts, by the projects'
own functions.

make.py FOLDER [NAME]...    FOLDER holds what README.md says; only the files NAME if some are named
"""

import ast
import base64
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

HERE = Path(__file__).parent


def ids(rows, columns, k, experts):
    return np.fromfunction(
        lambda r, c, i: (5 * r + 3 * c + i) % experts, (rows, columns, k), dtype=np.int64
    )


def functions(path, names, globals_):
    """Functions and assignments of a file by name, without what it imports."""
    body, assigned = [], []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.decorator_list, node.returns = [], None
            for argument in node.args.args:
                argument.annotation = None
            body.append(node)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names:
            assigned.append(node)
    exec(compile(ast.Module(assigned + body, []), str(path), "exec"), globals_)
    return [globals_[name] for name in names if callable(globals_[name])]


class Tensor:
    """What the functions ask of a tensor."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype.name, array.shape

    def dim(self):
        return self.array.ndim

    def numpy(self):
        return self.array

    detach = cpu = contiguous = lambda self: self


def main(folder, *only):
    folder = Path(folder)
    codec = SimpleNamespace(b64encode=base64.b64encode)
    about = (
        json.loads((HERE / "golden.json").read_text()) if (HERE / "golden.json").exists() else {}
    )

    def put(name, format, array, experts, message, dtype="", hint=None, same=True):
        if only and name not in only:
            return
        (HERE / name).write_bytes(message if isinstance(message, bytes) else message.encode())
        about[name] = {
            "format": format,
            "experts": experts,
            "shape": array.shape,
            "dtype": dtype,
            "hint": hint or {},
            "same": same,
        }

    array = ids(7, 3, 8, 128)
    for version in ((1, 0), (2, 0), (3, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array.astype(np.uint8), version)
        put(f"numpy-{version[0]}.npy", "npy", array, 128, file.getvalue(), same=version == (1, 0))

    path = folder / "vllm/vllm/utils/serial_utils.py"
    if path.exists():
        [encode] = functions(path, ["numpy2base64"], {"io": io, "np": np, "pybase64": codec})
        for name, experts, dtype in (
            ("vllm-8.npy.b64", 128, np.uint8),
            ("vllm-16.npy.b64", 512, np.uint16),
        ):
            array = ids(6, 4, 8, experts)
            put(
                name,
                "vllm",
                array,
                experts,
                encode(array.astype(dtype)),
                hint={"layer_map": [1, 2, 3]},
                same=False,
            )

    path = folder / "sglang/sglang/srt/managers/detokenizer_manager.py"
    [encode] = functions(path, ["_b64_encode_per_request"], {"pybase64": codec})
    array = ids(9, 3, 8, 256)
    put(
        "sglang-0.5.23.b64",
        "sglang",
        array,
        256,
        encode([Tensor(array.astype(np.int32))])[0],
        hint={"columns": 3, "k": 8},
    )

    path = folder / "megatron_core/megatron/core/inference/inference_request.py"
    serialize, unwrap = functions(
        path, ["serialize_ndarray", "unwrap_serialized_tensors"], {"np": np}
    )
    array = ids(5, 4, 6, 64)
    result = unwrap({"routing_indices": ("ndarray", serialize(array.astype(np.int16)))})
    put(
        "megatron-core-0.19.2.lists.json",
        "megatron",
        array,
        64,
        json.dumps(result["routing_indices"]),
        same=False,
    )
    put("lists.lists.json", "lists", array, 64, json.dumps(array.tolist(), separators=(",", ":")))

    path = folder / "nemo_rl/routed_experts_codec.py"
    torch = SimpleNamespace(int8="int8", int16="int16", int32="int32")
    names = ["_MAGIC", "_NP_DTYPES", "_TORCH_DTYPE_NAMES", "encode_routed_experts"]
    [encode] = functions(path, names, {"np": np, "torch": torch, "base64": base64})
    for name, experts, dtype in (
        ("nemo-rl-8.nrlre1", 128, "int8"),
        ("nemo-rl-16.nrlre1", 512, "int16"),
    ):
        array = ids(8, 3, 8, experts)
        put(name, "nemo-rl", array, experts, encode(Tensor(array.astype(dtype))))

    path = folder / "prime_rl/routed_experts.py"
    [encode] = functions(path, ["serialize_routed_experts"], {"np": np, "pybase64": codec})
    array = ids(6, 3, 8, 512)
    message = encode(array.astype(np.uint16), start=11)
    put(
        "prime-rl.routes.json",
        "prime-rl",
        array,
        512,
        json.dumps(message, separators=(",", ":")),
        hint={"first": 11},
    )

    (HERE / "golden.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    print(f"{len(about)} golden files")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
