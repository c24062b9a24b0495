"""The coefficients that plans use: one set for each lane, from all rows of engines like it, batches of every size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.predict.cases import Case, token_case
from benchmarks.predict.fit_physics import Fitted
from benchmarks.predict.fitting import FamilyFit, tail_bounds
from benchmarks.predict.physics import fit_physics, physical, stack
from benchmarks.predict.rows import Row
from draftyard.nouns.lane import Lane

_TOKEN = "serving TPOT"  # the family whose formula gives the milliseconds of a token
_ANCHOR_WEIGHT = 5  # single published points stand for the many low-load runs that the tables lack
FEWEST = 40


@dataclass(frozen=True)
class LaneFit:
    """Coefficients of one lane; the bounds hold for a dense model and for a mixture that the fit has not seen."""

    lane: Lane
    source: str
    rows: int
    fitted: Fitted
    token_bounds: tuple[float, float]
    mixture_bounds: tuple[float, float]
    median_error: float
    queue: float


def fit_lanes(cases: Sequence[Case], rows: Sequence[Row], families: Mapping[str, FamilyFit]) -> list[LaneFit]:
    """A fit for each lane that has enough rows. Errors and bounds come from models left out in turn."""
    anchors = [case for row in rows if (case := token_case(row)) is not None]
    found = []
    for lane, source, engines in (
        (Lane.TENSORRT, "TensorRT-LLM engine backend 0.14 to 0.17, Triton serving and maximum throughput", _engine),
        (Lane.LLMAPI, "TensorRT-LLM PyTorch backend 0.20 to 1.3, serving and maximum throughput", _pytorch),
    ):
        own = [_as_token(case) for case in cases if engines(case) and not case.row.suspect]
        if len(own) < FEWEST:
            continue
        added = anchors * _ANCHOR_WEIGHT if lane is Lane.TENSORRT else []
        rest: list[float] = []
        mixtures: list[bool] = []
        for model in sorted({case.model for case in own}):
            kept = [case for case in own if case.model != model] + added
            away = [case for case in own if case.model == model]
            if len(kept) >= FEWEST:
                predicted = physical(stack(away), fit_physics(kept).values)
                rest += np.log(np.array([case.measured for case in away]) / predicted).tolist()
                mixtures += [case.decode is not None and case.decode.expert_layers > 0 for case in away]
        fitted = fit_physics(own + added)
        first = families.get("serving TTFT")
        queue = _queue(first, "serving trtllm" if lane is Lane.LLMAPI else "serving triton")
        error = float(np.median(np.abs(np.expm1(rest))))
        dense = [value for value, mixture in zip(rest, mixtures, strict=True) if not mixture]
        sparse = [value for value, mixture in zip(rest, mixtures, strict=True) if mixture]
        bounds = tail_bounds(dense or rest), tail_bounds(sparse or rest)
        found.append(LaneFit(lane, source, len(own), fitted, *bounds, error, queue))
    return found


def _queue(first: FamilyFit | None, engine: str) -> float:
    """The share of other prompts that a prompt waits for, from first-token times under load."""
    if first is None:
        return 0.05
    return float(first.physics.get(engine, first.physics[""]).values[-1])


def _engine(case: Case) -> bool:
    version = case.row.text("engine_version")
    recent = version.startswith(("0.14", "0.16", "0.17"))
    return (case.family == "throughput, engine backend" and recent) or (
        case.family == _TOKEN and case.fit == "serving triton"
    )


def _pytorch(case: Case) -> bool:
    return case.family == "throughput, PyTorch backend" or (case.family == _TOKEN and case.fit == "serving trtllm")


def _as_token(case: Case) -> Case:
    """A throughput as the milliseconds in which all its sequences get one token."""
    if case.family == _TOKEN:
        return case
    return replace(case, family=_TOKEN, measured=1e3 * case.batch / case.measured)
