"""The names of the constants, as types: what a setting takes as a string. By them a type checker
finds a typo.

A program that has such a name in a variable of type str asks the enum for the member:
``routecap.Backend[name.upper()]``.
"""

from typing import Any, Literal, TypeAlias

import numpy as np

from ._constants import Dtype

__all__ = [
    "AppendPolicyName",
    "BackendName",
    "DtypeLike",
    "DtypeName",
    "ExtractName",
    "GroupScoreName",
    "IdSpaceName",
    "IntegerName",
    "MethodName",
    "OrderName",
    "PlanContextName",
    "PlanLayoutName",
    "PolicyName",
    "ProvenanceName",
    "RoleName",
    "ScoreName",
    "SnapshotName",
    "WireColumnsName",
    "WireFactName",
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
PolicyName: TypeAlias = Literal["keep", "replace"]
AppendPolicyName: TypeAlias = Literal["keep", "newest", "equal"]
ExtractName: TypeAlias = Literal["share", "take", "copy"]
WireName: TypeAlias = Literal["any", "serialized", "npy", "npy_base64", "raw", "raw_base64", "object", "nrlre1", "lists"]
WireFactName: TypeAlias = Literal[
    "shape", "dtype", "experts", "layers", "first", "validity", "reasons", "tags", "id_space", "provenance"
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
