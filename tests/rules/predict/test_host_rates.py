"""Rates of a CPU from measured steps: constants that made the steps are found again, and predict the demo."""

import pytest

from draftyard.nouns.host_speed import KernelRates
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import Placement
from draftyard.rules.predict.host_rates import Probe, cpu_placement, rates_of, sharpness_of
from draftyard.rules.predict.load_forecast import Lengths, plain_terms
from draftyard.rules.predict.reference_lane import reference_coefficients
from draftyard.rules.predict.step_terms import step_flops
from draftyard.rules.predict.step_time import step_ms

# SmolLM2-135M, the target of the demo.
DEMO = Network(
    family="llama",
    architecture="LlamaForCausalLM",
    hidden_size=576,
    intermediate_size=1536,
    layers=30,
    heads=9,
    kv_heads=3,
    head_size=64,
    vocab_size=49152,
    max_position_embeddings=8192,
    norm_epsilon=1e-5,
    rotary_base=100000.0,
    hidden_act="silu",
    tied_head=True,
)
TRUE = KernelRates(read_bytes_per_s=12e9, flops=60e9, layer_us=70.0, step_us=100.0, sequence_us=40.0, sharpness=1.5)


def made(rates: KernelRates, sequences: int, queries: float = 1.0) -> float:
    """Milliseconds of a step on a machine with these rates, by the form that the probe takes apart."""
    where = cpu_placement(DEMO, Precision.FP16, rates)
    reading = (
        1e3 * (where.shape.linear_weights + where.shape.vocabulary * where.shape.hidden) * 2 / rates.read_bytes_per_s
    )
    computing = 1e3 * sum(step_flops(where, sequences * queries, sequences)) / rates.flops
    if sequences == 1 and queries == 1:
        computing = 0.0
    if queries > 1:
        reading = 0.0
    both = (reading**rates.sharpness + computing**rates.sharpness) ** (1 / rates.sharpness)
    exposed = (rates.layer_us * DEMO.layers + rates.step_us + rates.sequence_us * (sequences - 1)) / 1e3
    return both + exposed


def test_constants_are_found_again() -> None:
    small = (TRUE.layer_us * 12 + TRUE.step_us) / 1e3
    found = rates_of(
        Probe(
            network=DEMO,
            precision=Precision.FP16,
            one_ms=made(TRUE, 1),
            batch_ms=made(TRUE, 8),
            prompt_ms=made(TRUE, 1, 128),
            batch=8,
            prompt=128,
            small_ms=small,
            small_batch_ms=small + 7 * TRUE.sequence_us / 1e3,
            small_layers=12,
            shallow_ms=(TRUE.layer_us * 2 + TRUE.step_us) / 1e3,
            shallow_layers=2,
        )
    )
    for name, value in TRUE.model_dump().items():
        assert getattr(found, name) == pytest.approx(value, rel=0.02), name


def test_a_busy_machine_gives_rates_all_the_same() -> None:
    """Small steps that took longer than large ones leave nothing to divide by, and still no rate is zero."""
    found = rates_of(
        Probe(
            DEMO,
            Precision.FP16,
            1.0,
            1.0,
            1.0,
            8,
            128,
            small_ms=9.0,
            small_batch_ms=1.0,
            small_layers=12,
            shallow_ms=20.0,
            shallow_layers=2,
        )
    )
    assert all(value >= 0 for value in found.model_dump().values())
    assert found.read_bytes_per_s > 0


@pytest.mark.parametrize(("together", "expected"), [(20.0, 1.0), (200**0.5, 2.0), (10.0, 8.0)])
def test_sharpness(together: float, expected: float) -> None:
    assert sharpness_of(10.0, 10.0, together) == pytest.approx(expected, abs=0.01)


def test_the_demo_on_such_a_machine() -> None:
    """269 MB of weights in 16 bit at 12 GB/s are 22 ms; layers and server add 3: measured alone, a step took 22 ms."""
    lane = reference_coefficients(TRUE, Precision.FP16, "today")
    where: Placement = cpu_placement(DEMO, Precision.FP16, TRUE)
    alone = step_ms(plain_terms(where, Lengths(64, 64), 1), lane.step)
    assert alone == pytest.approx(26.0, rel=0.08)
    eight = step_ms(plain_terms(where, Lengths(64, 64), 8), lane.step)
    assert alone < eight < 8 * alone
