"""The names of the constants, as types: what a setting takes as a string. By them a type checker
finds a typo. And what an argument takes that another library makes: tensors, streams, buffers.

A program that has such a name in a variable of type str asks the enum for the member:
``routecap.Backend[name.upper()]``.
"""

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from ._constants import (
    AppendPolicyName,
    BackendName,
    Dtype,
    DtypeName,
    ExtractName,
    GroupScoreName,
    IdSpaceName,
    MethodName,
    OrderName,
    PlanContextName,
    PlanLayoutName,
    PolicyName,
    ProvenanceName,
    RoleName,
    ScoreName,
    SnapshotName,
    SpanFlagName,
    Wire,
    WireAlias,
    WireColumnsName,
    WireFactName,
    WireName,
)
from ._protocols import BytesLike, NumberLike, StreamLike, TensorLike

__all__ = [
    "AppendPolicyName",
    "BackendName",
    "BytesLike",
    "DtypeLike",
    "DtypeName",
    "ExtractName",
    "GroupScoreName",
    "IdSpaceName",
    "IntegerName",
    "Integers",
    "MethodName",
    "NumberLike",
    "OrderName",
    "PlanContextName",
    "PlanLayoutName",
    "PolicyName",
    "ProvenanceName",
    "RoleName",
    "ScoreName",
    "SnapshotName",
    "SpanFlagName",
    "StreamLike",
    "TensorLike",
    "WeightsType",
    "WireAlias",
    "WireColumnsName",
    "WireDtypeLike",
    "WireFactName",
    "WireLike",
    "WireName",
]

WireLike: TypeAlias = Wire | WireName | WireAlias
"""What names a format of the wire. A WireAlias is its name in the library, who writes it, or the
ending of its files. `routecap.wire_format` takes any str, and gives the Wire.
"""

IntegerName: TypeAlias = Literal["uint8", "int16", "uint16", "int32", "uint32", "int64"]
"""NumPy's names of the types that ids can have."""
DtypeLike: TypeAlias = (
    Dtype | DtypeName | IntegerName | np.dtype[Any] | type[np.integer[Any]] | type[int]
)
"""What names a type of ids."""
WireDtypeLike: TypeAlias = DtypeLike | Literal["int8", "uint64"]
"""What names a type of the ids in a message."""

WeightsType: TypeAlias = Union[
    Dtype,
    Literal["float32", "float16", "bfloat16", "f32", "f16", "bf16"],
    "np.dtype[Any]",
    type[np.floating[Any]],
    Any,  # torch's
]
"""A type of weights."""

Integers: TypeAlias = Union[SupportsIndex, Sequence[SupportsIndex], NDArray[np.integer[Any]]]
"""One integer, or a sequence of them. A Request counts as its handle, a Step as its ticket."""
