"""Coefficients to start from where nothing was measured: what published fits of modern engines agree on."""

from dataclasses import replace

from draftyard.nouns.prediction import StepCoefficients
from draftyard.rules.predict.speculation import SpeculationCoefficients

# 90 % of the bandwidth for weights, 95 % for the cache, 75 % of 16-bit and 65 % of 8-bit peaks, 45 % of the link;
# 10 us a layer with CUDA graphs. Published fits: BLIS trained physics, LIMINAL (arXiv 2507.14397).
GRAPHS = StepCoefficients(
    weights=1 / 0.90,
    compute=1 / 0.75,
    compute_8bit=1 / 0.65,
    expert=1 / 0.5,
    cache=1 / 0.95,
    attention=2.0,
    activation=1.0,
    reduce=1 / 0.45,
    reduce_us=7.0,
    hop_us=1.5,
    slow_reduce_us=15.0,
    slow_hop_us=8.0,
    layer_us=10.0,
    expert_layer_us=10.0,
    step_us=300.0,
    sequence_us=10.0,
    sharpness=1.2,
)
# Eager PyTorch launches every kernel from Python: about half a millisecond a layer.
EAGER = replace(GRAPHS, layer_us=500.0, expert_layer_us=500.0, step_us=2000.0)
DRAFTING = SpeculationCoefficients(
    overhead_share=0.05,
    overhead_us=500.0,
    sequence_us=10.0,
    pass_us=100.0,
    layer=2.0,
    draft=1.5,
    arithmetic=1.0,
    sharpness=2.0,
    expert_widening=1.0,
)
