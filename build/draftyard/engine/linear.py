"""Matrix products of the decoder: how a weight is held decides which kernel multiplies it."""

import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """`x` [tokens, in] -> [tokens, out], in the activation type."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """Where a product stands: the layer, its modules there (their rows joined, equally many each), the expert."""

    modules: tuple[str, ...]
    layer: int | None = None
    expert: int | None = None


class PlainLinear:
    """Weight [out, in] and activations of one type."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        return torch.nn.functional.linear(x, self._weight, self._bias)


class HalfStoredLinear:
    """Weight stored in float16, activations and sums in float32 (FBGEMM).

    Half the bytes per token of float32, and each output row is computed alike whatever the number of rows, so that a
    verification pass over several tokens gives bit for bit what single steps give.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the operator announces its removal; torch is pinned
            self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.float().contiguous())
            torch.fbgemm_linear_fp16_weight_fp32_activation(torch.zeros(1, weight.shape[1]), self._packed, None)
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, self._bias)


class GatedFeedForward:
    """The dense feed-forward; `fc_gate` gives the rows of `mlp.fc` (the activated ones) first, then `mlp.gate`'s."""

    def __init__(self, fc_gate: Linear, proj: Linear, intermediate_size: int) -> None:
        self.fc_gate = fc_gate
        self._proj = proj
        self._inner = intermediate_size

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        both = self.fc_gate(x)
        return self._proj(torch.nn.functional.silu(both[:, : self._inner]).mul_(both[:, self._inner :]))


def half_stored_available() -> bool:
    """True where FBGEMM runs (x86-64 with AVX2)."""
    try:
        HalfStoredLinear(torch.zeros(8, 8), None)
    except RuntimeError:
        return False
    return True


def make_linear(weight: Tensor, bias: Tensor | None, half_stored: bool) -> Linear:
    """Hold a weight [out, in] for the chosen kernel; without `half_stored` it must have the activations' type."""
    return HalfStoredLinear(weight, bias) if half_stored else PlainLinear(weight, bias)
