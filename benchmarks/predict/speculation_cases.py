"""Speculation rows as cases: how many tokens are drafted and verified, by what, on which plain step."""

import re
from dataclasses import dataclass

from benchmarks.predict.cases import engine_name
from benchmarks.predict.published_models import published_shape
from benchmarks.predict.rows import Row, device_named, shape_of, storage_named
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.prediction import ModelShape, Placement
from draftyard.rules.predict.devices import device_of
from draftyard.rules.predict.memory_parts import weight_bytes
from draftyard.rules.predict.speculation import DraftTerms, IterationTerms
from draftyard.rules.predict.step_terms import step_terms

_CONTEXT = 1024.0  # tokens a sequence has on average; the rows do not say
_NO_MODEL = ("gram", "pld", "lookahead", "rest", "recycling", "samd", "suffix", "prompt")
_BLOCK = ("dflash", "d-cut")
_DRAFTS = {"Llama-3-70B": "Llama-3.2-1B", "Qwen3-8B": "Qwen3-1.7B", "T5-XXL-11B": ""}
# Draft steps and verified tokens where a paper's rows do not say: the defaults of each method's own code.
_DEFAULTS = {
    "eagle2": (6, 60),
    "eagle3": (7, 60),
    "eagle": (5, 26),
    "hydra": (4, 64),
    "medusa": (1, 64),
    "draft": (5, 6),
    "mtp": (1, 2),
    "none": (0, 11),
    "block": (1, 16),
}


@dataclass(frozen=True)
class SpecCase:
    """One speed-up. `curve` names the runs that differ in batch alone; `acceptance` is None where it is not given."""

    row: Row
    model: str
    gpu: str
    engine: str
    batch: float
    passes: int
    verified: int
    speedup: float
    acceptance: float | None
    curve: str
    groups: tuple[str, ...]
    terms: IterationTerms
    eager: bool


def spec_case(row: Row) -> SpecCase | str:
    """The case of a speculation row, or why there is none."""
    speedup = row.number("speedup")
    if speedup is None or speedup <= 0:
        return "no speed-up"
    if row.text("method") in ("", "none"):
        return "no method"
    batch = row.number("batch_or_concurrency")
    if batch is None:
        found = re.match(r"(\d+)", row.text("batch_or_concurrency"))
        if found is None:
            return "no batch"
        batch = float(found.group(1))
    shape = shape_of(row)
    if shape is None:
        return f"no sizes for model {row.text('model') or '(none)'}"
    family = method_family(row.text("method"))
    passes, verified = draft_sizes(row, family)
    place = _place(row, shape)
    eager = "hugging face" in row.text("engine").lower() or not row.text("engine")
    engine = "eager" if eager else engine_name(row).split(" ")[0]
    terms = _terms(row, place, family, (passes, verified), batch)
    return SpecCase(
        row=row,
        model=row.text("model"),
        gpu=row.text("gpu"),
        engine=engine,
        batch=batch,
        passes=passes,
        verified=verified,
        speedup=speedup,
        acceptance=row.number("acceptance_length"),
        curve=_curve(row),
        groups=_groups(row, engine, family, passes, verified),
        terms=terms,
        eager=eager,
    )


def at_batch(case: SpecCase, batch: float) -> IterationTerms:
    """The terms of the same run with another number of sequences."""
    shape = shape_of(case.row)
    assert shape is not None
    family = method_family(case.row.text("method"))
    return _terms(case.row, _place(case.row, shape), family, (case.passes, case.verified), batch)


def method_family(method: str) -> str:
    """One word for how tokens are proposed."""
    name = method.lower().replace("-", "").replace(" ", "")
    if any(word in method.lower() for word in _BLOCK):
        return "block"
    if any(word in method.lower() for word in _NO_MODEL) and "eagle" not in name:
        return "none"
    for word in ("eagle2", "eagle3", "eagle", "hydra", "medusa", "mtp"):
        if word in name:
            return word
    return "draft"


def draft_sizes(row: Row, family: str) -> tuple[int, int]:
    """Draft passes one after the other, and tokens verified for each sequence (the bonus token among them)."""
    text = row.text("k_or_tree")
    steps = re.search(r"(?:steps|k)=(\d+)", text)
    nodes = re.search(r"tree (\d+) nodes", text)
    block = re.search(r"(\d+) tokens per request", text) or re.search(r"-B(\d+)$", row.text("method"))
    tokens = row.number("num_draft_tokens")
    passes, verified = _DEFAULTS[family]
    if nodes:
        passes, verified = (2 if int(nodes.group(1)) < 10 else 4), int(nodes.group(1)) + 1
    if steps:
        passes, verified = int(steps.group(1)), int(steps.group(1)) + 1
    if block:
        passes, verified = 1, int(block.group(1))
    if tokens:
        verified = max(int(tokens), 2)
    if family in ("none", "medusa"):
        passes = 0 if family == "none" else 1
    return (1 if family == "block" else passes), verified


def _curve(row: Row) -> str:
    names = (
        "source",
        "model",
        "gpu",
        "engine",
        "method",
        "k_or_tree",
        "num_draft_tokens",
        "dataset",
        "section",
        "draft",
    )
    return "|".join(row.text(name) for name in names)


def _groups(row: Row, engine: str, family: str, passes: int, verified: int) -> tuple[str, ...]:
    model = row.text("model")
    tree = f"{row.text('k_or_tree')}/{row.text('topk')}/{row.text('num_draft_tokens')}"
    where = f"{engine}/{row.text('gpu')}"
    return (
        f"e:{where}",
        f"f:{engine}/{row.text('method')}",
        f"m:{where}/{model}",
        f"t:{where}/{row.text('method')}/{tree}",
        f"s:{where}/{model}/{row.text('method')}/{tree}",
        f"d:{where}/{model}/{row.text('dataset')}",
    )


def _place(row: Row, shape: ModelShape) -> Placement:
    """The devices; where a row leaves them out: an A100 for papers, else the fewest devices that hold the weights."""
    device = device_named(row.text("gpu")) or device_named("A100") or device_of(Gpu.H100_SXM)
    storage = storage_named(row.text("precision") or "BF16", row.text("kv_precision"))
    assert storage is not None or row.text("precision")
    if storage is None:
        storage = storage_named("BF16", "")
        assert storage is not None
    given = row.number("tp") or row.number("gpu_count")
    if given:
        return Placement(shape, device, storage, max(int(given), 1))
    tp = 1
    while tp < 8 and sum(weight_bytes(Placement(shape, device, storage, tp))) > 0.8 * device.usable_bytes:
        tp *= 2
    return Placement(shape, device, storage, tp)


def _terms(row: Row, place: Placement, family: str, sizes: tuple[int, int], batch: float) -> IterationTerms:
    passes, verified = sizes
    plain = step_terms(place, sequences=batch, queries=1, context=_CONTEXT, head_rows=batch)
    verify = step_terms(place, sequences=batch, queries=verified, context=_CONTEXT, head_rows=batch * verified)
    base, unit = row.number("baseline_value") or 0.0, row.text("unit")
    measured = 0.0
    if base > 0 and unit == "ms":
        measured = base
    elif base > 0 and unit in ("tok/s total", "tok/s/user", "tok/s/rank"):
        measured = 1e3 / base * (batch if unit == "tok/s total" else 1.0)
    return IterationTerms(
        plain=plain,
        verify=verify,
        draft=_draft(row, place, family, passes, batch),
        experts=1.0 if place.shape.experts else 0.0,
        measured_ms=measured,
    )


def _draft(row: Row, place: Placement, family: str, passes: int, batch: float) -> DraftTerms:
    """Ideal time of one draft pass: a layer and the head for heads of the EAGLE kind, a model of its own else."""
    shape, device = place.shape, place.device
    if family == "none":
        return DraftTerms(0.0, 0.0, 0.0)
    head = shape.vocabulary * shape.hidden * 2.0
    if family == "draft":
        own = published_shape(row.text("draft") or _DRAFTS.get(shape.name, ""), None, None)
        weights = 2.0 * own.parameters if own else 2.0 * min(shape.parameters * 0.015, 1.2e9)
        return DraftTerms(1e3 * weights / device.bandwidth_bytes_per_s, float(own.layers if own else 12), float(passes))
    layers = 5.0 if family == "block" else 1.0
    # One dense layer of the target's width: attention and a feed-forward of 3.5 x hidden rows.
    weights = layers * 2.0 * 14.0 * shape.hidden * shape.hidden + head
    return DraftTerms(1e3 * weights / place.tp / device.bandwidth_bytes_per_s, layers, float(passes))
