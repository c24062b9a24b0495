"""Makes artefacts of the right names, shapes and sizes without their weights, to try a whole matrix beforehand."""

from draftyard.doors.config_files import write_config
from draftyard.doors.tensors import write_hollow_file
from draftyard.nouns.blueprint import Step
from draftyard.verbs.convert import prepare
from draftyard.verbs.fp8_conversion import RANGES_NAME
from draftyard.verbs.making import Workplace
from draftyard.verbs.portions import ingredients

_NOTE = "rehearsal: the weights are holes"


def rehearse_checkpoint(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """All checks of a conversion, then files of holes: no weight is read and no room is taken."""
    conversion = prepare(step, ingredients(step, workplace.source_paths))
    for rank in range(conversion.mapping.world_size):
        write_hollow_file(workplace.staging / f"rank{rank}.safetensors", conversion.specs(rank))
        workplace.progress((rank + 1) / conversion.mapping.world_size, f"rank {rank}")
    write_config(workplace.staging / "config.json", conversion.config)
    return (_NOTE,)


def rehearse_calibration(step: Step, workplace: Workplace) -> tuple[str, ...]:
    """Nothing is measured; no conversion could read the result."""
    write_config(workplace.staging / RANGES_NAME, {"rehearsal": True})
    return (_NOTE,)
