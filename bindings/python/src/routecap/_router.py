"""How a router chooses experts."""

from . import _structs as structs
from ._constants import Dtype, GroupScore, Method, RouterFlag, Score, Status
from ._docs import documented
from ._errors import error, member
from ._library import raw
from ._protocols import TensorLike
from ._tensors import describe, expect_dense, expect_device, expect_dtype, expect_kind
from .names import DtypeLike, GroupScoreName, MethodName, ScoreName

FLOATS = Dtype.F32, Dtype.F16, Dtype.BF16
"""What logits and biases are made of."""


class Router:
    """How a router chooses experts: a method in use, and what it takes from the model
    (routecap_router_init).

    What is not given is as the method has it. `bias` [experts] and `hash_table` [tokens, k] are
    tensors on the capturer's device; the router holds them. Where a framework has no bfloat16, say
    bias_dtype="bf16" of 16-bit integers.
    """

    @documented("routecap_router_init")
    def __init__(
        self,
        method: Method | MethodName | None = None,
        *,
        score: Score | ScoreName | None = None,
        group_score: GroupScore | GroupScoreName | None = None,
        flags: RouterFlag | int | None = None,
        groups: int | None = None,
        groups_kept: int | None = None,
        scale: float | None = None,
        floor: float | None = None,
        bias: TensorLike | None = None,
        bias_dtype: DtypeLike | None = None,
        hash_table: TensorLike | None = None,
    ) -> None:
        """A router of `method`, or of its parts."""
        memory = structs.router.empty()
        if method is not None:
            raw.routecap_router_init(memory, structs.router.size, member(Method, method))
        self._fields = dict(zip(structs.router.fields, structs.router.read(memory)))
        given = {
            "score": score if score is None else member(Score, score),
            "group_score": group_score if group_score is None else member(GroupScore, group_score),
            "flags": flags,
            "groups": groups,
            "groups_kept": groups_kept,
            "scale": scale,
            "floor": floor,
        }
        self._fields.update({name: value for name, value in given.items() if value is not None})
        self.bias = bias
        self.bias_dtype = bias_dtype
        self.hash_table = hash_table

    def memory(self, device: int, experts: int, k: int) -> bytes:
        fields = self._fields
        if self.bias is not None:
            bias = describe(self.bias, "bias")
            expect_device(bias, device, "bias")
            expect_dense(bias, "bias")
            if bias.shape != (experts,):
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"bias has shape {bias.shape}, {(experts,)} is expected: give one number for"
                    " each expert, as one row",
                )
            fields = {
                **fields,
                "bias": bias.address,
                "bias_dtype": expect_kind(bias, self.bias_dtype, FLOATS, "bias"),
            }
        if self.hash_table is not None:
            table = describe(self.hash_table, "hash_table")
            expect_device(table, device, "hash_table")
            expect_dtype(table, (Dtype.I32,), "hash_table")
            expect_dense(table, "hash_table")
            if len(table.shape) != 2 or table.shape[1] != k:
                raise error(
                    Status.ERR_SHAPE_MISMATCH,
                    f"hash_table has shape {table.shape}, (tokens, {k}) is expected: a row for each"
                    " token id, with its k experts",
                )
            fields = {**fields, "hash_table": table.address, "hash_tokens": table.shape[0]}
        return structs.router(**fields)
