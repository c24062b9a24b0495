"""Matrix products with FP8 weights and activations, each with one scale a tensor, as the GPU's tensor cores do them."""

import torch
from torch import Tensor

from draftyard.engine.linear import Linear

LARGEST = 448.0


def rounded(x: Tensor, scale: float) -> Tensor:
    """The E4M3 values nearest to x / scale, saturated at 448, in the type of x; not multiplied back."""
    # A product with the reciprocal would round some values otherwise; older torch does not saturate by itself.
    return (x / scale).clamp_(-LARGEST, LARGEST).to(torch.float8_e4m3fn).to(x.dtype)


def through_fp8(x: Tensor, scale: float) -> Tensor:
    """x as it comes back from FP8 storage with this scale."""
    return rounded(x.float(), scale).mul_(scale).to(x.dtype)


def values_of(codes: Tensor) -> Tensor:
    """E4M3 bytes (uint8) as float16, which holds every one of their values exactly."""
    return codes.view(torch.float8_e4m3fn).to(torch.float16)


class ScaledLinear:
    """FP8 codes times FP8 codes, summed in float32, then scaled: y = (x_q W_q^T) * scales + b.

    `inner` multiplies with the weight's codes as values; `scales` is what each output row is multiplied with, weight
    scale times activation scale, [out] or [1]. For activations in float32.
    """

    def __init__(self, inner: Linear, scales: Tensor, activation_scale: float, bias: Tensor | None) -> None:
        self._inner = inner
        self._scales = scales
        self._activation_scale = activation_scale
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        y = self._inner(rounded(x, self._activation_scale)).mul_(self._scales)
        return y if self._bias is None else y.add_(self._bias)


class RoundedInputLinear:
    """Weights multiplied back into the activations' type, activations sent through FP8: for narrow activation types.

    Sums of codes would leave float16's range before they are scaled.
    """

    def __init__(self, inner: Linear, activation_scale: float) -> None:
        self._inner = inner
        self._activation_scale = activation_scale

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        return self._inner(through_fp8(x, self._activation_scale))
