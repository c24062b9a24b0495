"""The coefficients of one lane, read from JSON: what was fitted, on what, and how far unseen models were off."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure
from draftyard.nouns.prediction import StepCoefficients
from draftyard.rules.predict.memory_parts import MemoryCoefficients
from draftyard.rules.predict.speculation import SpeculationCoefficients


@dataclass(frozen=True, slots=True)
class Bounds:
    """5 % and 95 % quantiles of log(measured / predicted): token times, first tokens, memory, speed-up.

    Token times of mixtures have their own: which experts a batch reads is known least.
    """

    token: tuple[float, float]
    token_mixture: tuple[float, float]
    first_token: tuple[float, float]
    memory: tuple[float, float]
    speedup: tuple[float, float]


@dataclass(frozen=True, slots=True)
class LaneCoefficients:
    """One lane: `step` and `prefill` for tokens under load, `first_token` for prompts alone.

    `queue` is the share of the other prompts that a prompt waits for. `errors` are standard deviations of the
    logarithms of `step`, in its order.
    """

    source: str
    step: StepCoefficients
    errors: tuple[float, ...]
    prefill: float
    queue: float
    first_token: StepCoefficients
    memory: MemoryCoefficients
    speculation: SpeculationCoefficients
    bounds: Bounds
    calibrated: bool = False


STEP_FIELDS = tuple(one.name for one in fields(StepCoefficients))
SPECULATION_FIELDS = tuple(one.name for one in fields(SpeculationCoefficients))


def lane_coefficients(document: Mapping[str, Json], lane: str) -> LaneCoefficients:
    """The set of a lane; Failure when the file lacks it or a number of it."""
    try:
        stored = _object(_object(document["lanes"])[lane])
        speculation = _object(document["speculation"])
        bounds = _object(stored["bounds"])
        return LaneCoefficients(
            source=str(stored["source"]),
            step=step_of(_object(stored["step"])),
            errors=tuple(_number(_object(stored["errors"])[name]) for name in STEP_FIELDS),
            prefill=_number(stored["prefill"]),
            queue=_number(stored["queue"]),
            first_token=step_of(_object(stored["first_token"])),
            memory=memory_of(_object(stored["memory"])),
            speculation=speculation_of(_object(speculation["coefficients"])),
            bounds=Bounds(
                token=_pair(bounds["token"]),
                token_mixture=_pair(bounds["token_mixture"]),
                first_token=_pair(bounds["first_token"]),
                memory=_pair(bounds["memory"]),
                speedup=_pair(_object(speculation["bounds"])["law"]),
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Failure(
            f"the coefficients of lane {lane} are incomplete: {error}",
            "restore engines/prediction.json from git, or install draftyard again",
            ExitCode.ENVIRONMENT,
        ) from error


def step_of(values: Mapping[str, Json]) -> StepCoefficients:
    """Coefficients of a step by name; KeyError or TypeError when one is missing or no number."""
    return StepCoefficients(*(_number(values[name]) for name in STEP_FIELDS))


def speculation_of(values: Mapping[str, Json]) -> SpeculationCoefficients:
    """Coefficients of drafting by name; KeyError or TypeError when one is missing or no number."""
    return SpeculationCoefficients(*(_number(values[name]) for name in SPECULATION_FIELDS))


def memory_of(values: Mapping[str, Json]) -> MemoryCoefficients:
    """Coefficients of memory by name; KeyError or TypeError when one is missing or no number."""
    return MemoryCoefficients(
        weights=_number(values["weights"]),
        cache=_number(values["cache"]),
        activation=_number(values["activation"]),
        logits=_number(values["logits"]),
        constant_gb=(
            _number(values["gb_tp1"]),
            _number(values["gb_tp2"]),
            _number(values["gb_tp4"]),
            _number(values["gb_tp8"]),
        ),
    )


def _object(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is no object")
    return value


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _pair(value: Json) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise TypeError(f"{value!r} is no pair of bounds")
    return _number(value[0]), _number(value[1])
