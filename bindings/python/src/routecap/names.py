"""The names of the constants, as types: what a setting takes as a string. By them a type checker
finds a typo.

A program that has such a name in a variable of type str asks the enum for the member:
``routecap.Backend[name.upper()]``.
"""

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from ._constants import Dtype, Wire

__all__ = [
    "AppendPolicyName",
    "BackendName",
    "DtypeLike",
    "DtypeName",
    "ExtractName",
    "GroupScoreName",
    "IdSpaceName",
    "IntegerName",
    "Integers",
    "MethodName",
    "OrderName",
    "PlanContextName",
    "PlanLayoutName",
    "PolicyName",
    "ProvenanceName",
    "RoleName",
    "ScoreName",
    "SnapshotName",
    "SpanFlagName",
    "WireAlias",
    "WireColumnsName",
    "WireDtypeLike",
    "WireFactName",
    "WireLike",
    "WireName",
]

BackendName: TypeAlias = Literal["host", "cuda"]
RoleName: TypeAlias = Literal["owner", "mirror", "disabled"]
IdSpaceName: TypeAlias = Literal["logical", "physical"]
ProvenanceName: TypeAlias = Literal["captured", "recomputed"]
ScoreName: TypeAlias = Literal["logit", "softmax", "sigmoid", "sqrt_softplus"]
GroupScoreName: TypeAlias = Literal["max", "top2", "top2_distinct"]
MethodName: TypeAlias = Literal[
    "softmax",
    "softmax_renormalize",
    "topk_softmax",
    "topk",
    "topk_sigmoid",
    "sigmoid",
    "sigmoid_renormalize",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v4",
    "ernie",
]
SnapshotName: TypeAlias = Literal["taken", "make"]
SpanFlagName: TypeAlias = Literal[
    "speculative", "device_positions", "prefill", "decode", "uncounted"
]
PolicyName: TypeAlias = Literal["keep", "replace"]
AppendPolicyName: TypeAlias = Literal["keep", "newest", "equal"]
ExtractName: TypeAlias = Literal["share", "take", "copy"]
WireName: TypeAlias = Literal[
    "any", "serialized", "npy", "npy_base64", "raw", "raw_base64", "object", "nrlre1", "lists"
]
WireAlias: TypeAlias = Literal[
    "routecap",
    "npy.base64",
    "vllm",
    "raw.base64",
    "sglang",
    "dynamo",
    "prime-rl",
    "verifiers",
    "nemo-rl",
    "megatron",
    "skyrl",
    ".routecap",
    ".npy",
    ".npy.b64",
    ".b64",
    ".routes.json",
    ".nrlre1",
    ".lists.json",
]
"""What else names a format of the wire: its name in the library, who writes it, the ending of
files.
"""
WireLike: TypeAlias = Wire | WireName | WireAlias
"""What names a format of the wire. `routecap.wire_format` takes any str, and gives the Wire."""
WireFactName: TypeAlias = Literal[
    "shape",
    "dtype",
    "experts",
    "layers",
    "first",
    "validity",
    "reasons",
    "tags",
    "id_space",
    "provenance",
]
WireColumnsName: TypeAlias = Literal["found", "captured", "decoder"]
OrderName: TypeAlias = Literal["row_major", "layer_major"]
PlanLayoutName: TypeAlias = Literal["packed", "padded_right", "padded_left"]
PlanContextName: TypeAlias = Literal["none", "zigzag", "contiguous", "allgather"]
DtypeName: TypeAlias = Literal[
    "u8", "i16", "u16", "i32", "u32", "i64", "id16_bf16", "i8", "u64", "f32", "f16", "bf16"
]

IntegerName: TypeAlias = Literal["uint8", "int16", "uint16", "int32", "uint32", "int64"]
"""NumPy's names of the types that ids can have."""
DtypeLike: TypeAlias = (
    Dtype | DtypeName | IntegerName | np.dtype[Any] | type[np.integer[Any]] | type[int]
)
"""What names a type of ids."""
WireDtypeLike: TypeAlias = DtypeLike | Literal["int8", "uint64"]
"""What names a type of the ids in a message."""

Integers: TypeAlias = Union[SupportsIndex, Sequence[SupportsIndex], NDArray[np.integer[Any]]]
"""One integer, or a sequence of them. A Request counts as its handle, a Step as its ticket."""
