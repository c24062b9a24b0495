"""Turns rows into cases: which family a row belongs to, what physics says it depends on, and which rows are alike."""

import math
from dataclasses import dataclass

from benchmarks.predict.rows import Row, placement
from draftyard.nouns.prediction import Placement, Routing, StepTerms
from draftyard.rules.predict.memory_parts import MemoryLoad, static_parts
from draftyard.rules.predict.occupancy import held_sequences
from draftyard.rules.predict.step_terms import step_terms

STATIC_ENGINE = "TensorRT-LLM (TensorRT engine, static batch)"
FAMILIES = (
    "decode step",
    "TTFT",
    "memory",
    "serving TPOT",
    "serving TTFT",
    "serving throughput",
    "throughput, PyTorch backend",
    "throughput, engine backend",
    "static tables",
)


@dataclass(frozen=True)
class Case:
    """One row of a family. `share` is how many prefills each decode step carries, `batch` sequences at once.

    `fit` names the set of physical coefficients; `groups` one group for each level, widest first; `position` the load
    on the axes of the correction, in octaves.
    """

    row: Row
    family: str
    measured: float
    fit: str
    groups: tuple[str, ...]
    position: tuple[float, ...]
    model: str
    gpu: str
    tp: int
    batch: float
    share: float = 0.0
    decode: StepTerms | None = None
    prefill: StepTerms | None = None
    parts: tuple[float, ...] = ()


def case_of(row: Row) -> Case | str:
    """The case of a row, or why there is none."""
    value = row.number("value")
    if value is None or value <= 0:
        return "no value"
    kind, metric = row.text("kind"), row.text("metric")
    place = placement(row)
    if isinstance(place, str):
        return place
    if kind in ("baseline-step", "ttft", "memory"):
        return _static_case(row, place, value)
    if kind == "baseline-serving":
        return _serving_case(row, place, value, metric)
    if kind == "baseline-throughput":
        return _throughput_case(row, place, value)
    if kind in ("baseline-static", "mlperf"):
        return _table_case(row, place, value, metric)
    return f"kind {kind} is in no family"


def engine_name(row: Row) -> str:
    """One word for an engine, versions left out."""
    text = row.text("engine").lower()
    for word in ("nim", "triton", "vllm", "sglang", "static", "pytorch backend", "tensorrt engine", "gpt-fast"):
        if word in text:
            return word
    return text or "unknown"


def _octave(value: float) -> float:
    return math.log2(max(value, 1.0))


def _same(row: Row, place: Placement) -> tuple[str, str]:
    """What rows of one model share, and what rows on the same devices share."""
    return f"{row.text('model')}/{row.text('precision')}", f"{row.text('gpu')}/tp{place.tp}"


def _static_case(row: Row, place: Placement, value: float) -> Case | str:
    kind = row.text("kind")
    batch, isl, osl = row.number("batch_or_concurrency"), row.number("isl"), row.number("osl")
    if batch is None or isl is None or osl is None:
        if kind == "baseline-step":
            return "decode step without batch or lengths"
        return "no batch or lengths"
    family = {"baseline-step": "decode step", "ttft": "TTFT", "memory": "memory"}[kind]
    if kind == "memory" and row.text("metric") != "peak_memory_per_gpu":
        return f"metric {row.text('metric')} is in no family"
    model, devices = _same(row, place)
    static = engine_name(row) == "static"
    fit = "static-0.9" if static else f"step {engine_name(row)}"
    decode = prefill = None
    parts: tuple[float, ...] = ()
    if family == "decode step":
        routing = Routing.SAME if static else Routing.SPREAD
        decode = step_terms(place, sequences=batch, queries=1, context=isl + osl / 2, head_rows=batch, routing=routing)
    elif family == "TTFT":
        prefill = step_terms(
            place, sequences=batch, queries=isl, context=isl, head_rows=batch, routing=Routing.SPREAD, causal=True
        )
    else:
        parts = static_parts(place, MemoryLoad(batch, batch * isl, isl + osl, 1.0))
    return Case(
        row=row,
        family=family,
        measured=value,
        fit=fit,
        groups=("all", f"m:{model}", f"g:{devices}", f"s:{model}/{devices}"),
        position=(_octave(batch), _octave(isl), _octave(osl)),
        model=row.text("model"),
        gpu=row.text("gpu"),
        tp=place.tp,
        batch=batch,
        decode=decode,
        prefill=prefill,
        parts=parts,
    )


def _serving_case(row: Row, place: Placement, value: float, metric: str) -> Case | str:
    family = {"itl": "serving TPOT", "ttft": "serving TTFT", "output_throughput": "serving throughput"}.get(
        metric.replace("total_", "output_")
    )
    if family is None:
        return f"metric {metric} is in no family"
    isl, osl = row.number("isl"), row.number("osl")
    if isl is None or osl is None:
        return "no lengths"
    batch = row.number("batch_or_concurrency") or _open_loop(row, place, isl, osl)
    if batch is None:
        return "no concurrency and no request rate"
    if row.text("unit") == "tok/s/GPU":
        value *= row.number("gpu_count") or place.tp
    if metric == "total_throughput":
        value *= osl / (isl + osl)
    ranks = row.note("attention_dp") or 1.0
    each = max(batch / ranks, 1.0)
    held = min(each, held_sequences(place, isl, osl, each))
    model, devices = _same(row, place)
    engine = engine_name(row)
    layout = f"{devices}/dp{ranks:g}/ep{row.note('moe_ep') or 1:g}"
    version = row.text("engine_version") or "?"
    return Case(
        row=row,
        family=family,
        measured=value,
        fit=f"serving {engine}",
        groups=(
            f"e:{engine}",
            f"m:{engine}/{model}",
            f"g:{engine}/{layout}",
            f"s:{engine}/{model}/{layout}",
            f"v:{engine}/{version}/{model}/{layout}",
        ),
        position=(_octave(batch), _octave(isl), _octave(osl)),
        model=row.text("model"),
        gpu=row.text("gpu"),
        tp=place.tp,
        batch=held * ranks,
        share=(held if family == "serving throughput" else held - 1.0) / max(osl, 1.0),
        decode=_decode(place, held, isl, osl),
        prefill=_prefill(place, isl),
    )


def _open_loop(row: Row, place: Placement, isl: float, osl: float) -> float | None:
    """Requests in flight at a request rate, by Little's law with a step of ideal times x 1.6 + 5 ms."""
    rate = row.text("qps")
    if not rate:
        return None
    most = min(500.0, held_sequences(place, isl, osl, 2048.0))
    if not rate.replace(".", "").isdigit():
        return most
    flying = 1.0
    for _ in range(30):
        terms = _decode(place, flying, isl, osl)
        step = 1.6 * (terms.weights_ms + terms.compute_ms + terms.cache_ms) + 5.0
        flying = min(most, 0.5 * flying + 0.5 * max(float(rate) * osl * step / 1e3, 1.0))
    return flying


def _throughput_case(row: Row, place: Placement, value: float) -> Case | str:
    isl, osl = row.number("isl"), row.number("osl")
    if isl is None or osl is None:
        return "no lengths"
    if row.text("metric") not in ("output_throughput", "output_throughput_per_gpu"):
        return f"metric {row.text('metric')} is in no family"
    gpus = row.number("gpu_count") or place.tp
    if row.text("unit") == "tok/s/GPU":
        value *= gpus
    place = Placement(place.shape, place.device, place.storage, int(gpus) if not row.text("tp") else place.tp)
    backend = "PyTorch backend" if engine_name(row) == "pytorch backend" else "engine backend"
    version = row.text("engine_version")
    most = 2048.0 if backend == "PyTorch backend" else 1024.0
    held = held_sequences(place, isl, osl, row.number("batch_or_concurrency") or most)
    model, devices = _same(row, place)
    return Case(
        row=row,
        family=f"throughput, {backend}",
        measured=value,
        fit=f"throughput {backend}",
        groups=(
            "all",
            f"v:{version}/{row.text('precision')}",
            f"m:{model}",
            f"g:{devices}",
            f"s:{model}/{devices}",
            f"t:{version}/{model}",
            f"u:{version}/{model}/{devices}",
        ),
        position=(_octave(isl), _octave(osl)),
        model=row.text("model"),
        gpu=row.text("gpu"),
        tp=place.tp,
        batch=held,
        share=held / max(osl, 1.0),
        decode=_decode(place, held, isl, osl),
        prefill=_prefill(place, isl),
    )


def token_case(row: Row) -> Case | None:
    """The plain run beside a speculation result of a TensorRT engine at batch 1, as milliseconds for each token."""
    base = row.number("baseline_value")
    place = placement(row)
    if row.text("kind") != "spec" or engine_name(row) != "tensorrt engine" or not base or isinstance(place, str):
        return None
    if row.text("unit") not in ("tok/s total", "tok/s/user") or row.number("batch_or_concurrency") != 1:
        return None
    return Case(
        row=row,
        family="serving TPOT",
        measured=1e3 / base,
        fit="anchor",
        groups=(),
        position=(),
        model=row.text("model"),
        gpu=row.text("gpu"),
        tp=place.tp,
        batch=1.0,
        decode=_decode(place, 1.0, 1024.0, 512.0),
        prefill=_prefill(place, 1024.0),
    )


def _table_case(row: Row, place: Placement, value: float, metric: str) -> Case | str:
    """Older tables of static batches: output tokens over the whole time, the prompt's included."""
    batch, isl, osl = row.number("batch_or_concurrency"), row.number("isl"), row.number("osl")
    if batch is None or isl is None or osl is None:
        return "no batch or lengths"
    if not metric.startswith("output_throughput"):
        return f"metric {metric} is in no family"
    value *= place.tp if row.text("unit") == "tok/s/GPU" else 1
    model, devices = _same(row, place)
    return Case(
        row=row,
        family="static tables",
        measured=value,
        fit="static tables",
        groups=("all", f"m:{model}", f"g:{devices}"),
        position=(_octave(batch),),
        model=row.text("model"),
        gpu=row.text("gpu"),
        tp=place.tp,
        batch=batch,
        share=batch / max(osl, 1.0),
        decode=_decode(place, batch, isl, osl),
        prefill=_prefill(place, isl),
    )


def _decode(place: Placement, batch: float, isl: float, osl: float) -> StepTerms:
    return step_terms(place, sequences=batch, queries=1, context=isl + osl / 2, head_rows=batch)


def _prefill(place: Placement, isl: float) -> StepTerms:
    return step_terms(place, sequences=1, queries=isl, context=isl, head_rows=1, causal=True)
