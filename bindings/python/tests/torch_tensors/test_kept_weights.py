"""Weights of a router, as adapters hand them to a capturer: bit for bit, or refused by name."""

from typing import Any

import pytest
import torch
from routecap import Dtype
from routecap.adapter import kept_weights

IDS = torch.tensor([[3, 1], [0, 2], [5, 4]])
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def kept(weights: Any, dtype: Dtype = Dtype.F32) -> torch.Tensor:
    return kept_weights(IDS, weights, router="router 7", setting="WEIGHTS", dtype=dtype)


def of(dtype: torch.dtype) -> torch.Tensor:
    """Some that no rounding leaves as they are, one that is no number, and their last bits."""
    bits = torch.tensor([[0x3EAB, 0x0001], [0x8000, 0x7FC1], [0x7F80, 0x3C03]], dtype=torch.int32)
    if dtype == torch.float32:
        return (bits << 16 | 0x1235).view(torch.float32)
    return bits.to(torch.int16).view(dtype)


def same_bits(found: torch.Tensor, known: torch.Tensor) -> bool:
    kind = torch.int32 if known.dtype == torch.float32 else torch.int16
    return found.dtype == known.dtype and torch.equal(found.view(kind), known.view(kind))


@pytest.mark.parametrize("given", FLOATS, ids=str)
def test_float32_holds_what_each_type_says(given: torch.dtype) -> None:
    weights = of(given)
    found = kept(weights)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), weights.double(), rtol=0, atol=0, equal_nan=True)
    assert given != torch.float32 or same_bits(found, weights)


@pytest.mark.parametrize(
    ("dtype", "given"), [(Dtype.BF16, torch.bfloat16), (Dtype.F16, torch.float16)], ids=str
)
def test_a_narrower_type_holds_itself_alone(dtype: Dtype, given: torch.dtype) -> None:
    assert same_bits(kept(of(given), dtype), of(given))
    for other in {*FLOATS, torch.float64} - {given}:
        with pytest.raises(
            ValueError,
            match=f"WEIGHTS is set, and router 7 gave weights of {other}, .* take float32",
        ):
            kept(torch.ones(3, 2, dtype=other), dtype)


def test_weights_that_lie_in_a_wider_table_are_given_side_by_side() -> None:
    table = torch.arange(12, dtype=torch.float32).view(3, 4)
    found = kept(table[:, :2])
    assert found.is_contiguous() and torch.equal(found, table[:, :2])


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (torch.ones(3, 3), r"shape \(3, 3\) beside ids \(3, 2\)"),
        (torch.ones(2, 2), r"shape \(2, 2\) beside ids \(3, 2\)"),
        (torch.ones(6), r"shape \(6,\) beside ids \(3, 2\)"),
        (None, r"NoneType beside ids \(3, 2\)"),
        ([[0.5, 0.5]] * 3, r"list beside ids \(3, 2\)"),
        (torch.ones(3, 2, dtype=torch.float64), "torch.float64, which torch.float32 does not hold"),
        (torch.ones(3, 2, dtype=torch.int32), "torch.int32, which torch.float32 does not hold"),
    ],
)
def test_what_is_not_one_weight_for_each_id_is_refused_and_named(weights: Any, said: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"WEIGHTS is set, and router 7 gave weights of {said}.*leave it out to capture ids",
    ):
        kept(weights)
