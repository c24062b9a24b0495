"""Finds what a checkpoint is made of: a model's own tensors, those of its heads, and the config they must give."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.source import Source
from draftyard.nouns.speculator_source import SpeculatorSource
from draftyard.nouns.tensor import TensorType
from draftyard.rules.families.family import Rule
from draftyard.rules.families.known_families import FAMILIES
from draftyard.rules.quantisation import form_of
from draftyard.rules.shards import Mapping2D
from draftyard.rules.speculators.eagle import eagle_rules
from draftyard.rules.speculators.eagle3 import eagle3_rules
from draftyard.rules.speculators.medusa import medusa_rules
from draftyard.rules.speculators.mtp import mtp_rules
from draftyard.rules.stored_fp8 import is_stored_scale
from draftyard.rules.trtllm import DTYPES, checkpoint_config, integer_of, object_of
from draftyard.rules.trtllm_heads import drafter_config, eagle_config, medusa_config
from draftyard.verbs.inspect import inspect, inspect_speculator
from draftyard.verbs.rank_writing import Portion, StoredTensor

MERGED = (SpeculatorKind.MEDUSA, SpeculatorKind.EAGLE)
APART = (SpeculatorKind.EAGLE3, SpeculatorKind.MTP)


@dataclass(frozen=True, slots=True)
class Ingredients:
    """The portions of a checkpoint, the config that follows from them, and what people should know of the sources."""

    portions: tuple[Portion, ...]
    config: Mapping[str, Json]
    weight_type: TensorType
    notes: tuple[str, ...]


def ingredients(step: Step, directories: tuple[Path, ...]) -> Ingredients:
    """What a checkpoint step is to be made of. `directories` are those of its sources, the target's first.

    Failure when a source is contradictory, or not the one that was planned.
    """
    config, role = object_of(step.parameters, "config"), str(step.parameters["role"])
    allowed = step.parameters.get("allow_pickle") is True
    if role in [kind.value for kind in APART]:
        source = inspect_speculator(directories[0], SpeculatorKind(role), allow_pickle=allowed)
        _refuse_change(step, source.path, source.digest)
        return _drafter(source, config)
    model = inspect(directories[0], allow_pickle=allowed)
    _refuse_change(step, model.path, model.digest)
    if role not in [kind.value for kind in MERGED]:
        return Ingredients((model_portion(model),), _plain_config(model, config), model.weight_type, model.notes)
    source = inspect_speculator(directories[1], SpeculatorKind(role), allow_pickle=allowed)
    _refuse_change(step, source.path, source.digest)
    return (_medusa if source.kind is SpeculatorKind.MEDUSA else _eagle)(model, source, config)


def _refuse_change(step: Step, path: str, digest: str) -> None:
    if digest not in step.inputs:
        raise Failure(f"{path} changed since the plan was made", "plan again, and leave the model alone meanwhile")


def mapping_of(config: Mapping[str, Json]) -> Mapping2D:
    """The cut of a checkpoint."""
    block = object_of(config, "mapping")
    return Mapping2D(integer_of(block, "tp_size"), integer_of(block, "pp_size"))


def _plain_config(model: Source, config: Mapping[str, Json]) -> dict[str, Json]:
    """The config of the model's part, from the network anew; only what a recipe decides is read from `config`."""
    precision = {word: precision for precision, word in DTYPES.items()}[str(config["dtype"])]
    mapping = mapping_of(config)
    return checkpoint_config(model.network, precision, mapping.tp_size, mapping.pp_size, form_of(config, precision))


def model_portion(model: Source) -> Portion:
    """What a model brings to its own checkpoint."""
    directory = Path(model.path)
    stored = {tensor.name: StoredTensor(directory, tensor) for tensor in model.tensors}
    rules = FAMILIES[model.network.family].rules(model.network)
    return Portion(model.network, rules, stored, frozenset(name for name in stored if not is_stored_scale(name)))


def _head_portion(source: SpeculatorSource, model: Source | None, rules: tuple[Rule, ...], copies: int = 1) -> Portion:
    """The heads' tensors under their page's names, and the target's, which they may borrow."""
    directory = Path(source.path)
    own = {
        tensor.name: StoredTensor(directory, replace(tensor, name=source.stored_names[tensor.name]))
        for tensor in source.tensors
    }
    borrowed = {} if model is None else model_portion(model).stored
    network = source.network.decoder or (model.network if model else None)
    if network is None:
        raise ValueError(f"{source.kind} has neither layers of its own nor a target")
    # A head of the speculator is written whatever the target's is tied to.
    return Portion(replace(network, tied_head=False), rules, {**borrowed, **own}, frozenset(own), copies)


def _medusa(model: Source, source: SpeculatorSource, config: Mapping[str, Json]) -> Ingredients:
    heads = integer_of(config, "num_medusa_heads")
    own = medusa_config(
        _plain_config(model, config), model.network.family, source.network, heads, integer_of(config, "max_draft_len")
    )
    portion = _head_portion(source, model, medusa_rules(source.network, model.network, heads))
    notes = () if source.network.own_head else (f"the target's head is copied for each of {heads} heads",)
    return _merged(model, source, portion, own, notes)


def _eagle(model: Source, source: SpeculatorSource, config: Mapping[str, Json]) -> Ingredients:
    steps, network = integer_of(config, "num_eagle_layers"), source.network
    non_leaves, nodes = integer_of(config, "max_non_leaves_per_layer"), integer_of(config, "max_draft_len")
    own = eagle_config(_plain_config(model, config), network, steps, non_leaves, nodes)
    copies = 1 if network.reduced else steps
    rules = eagle_rules(network, model.network)
    copied = tuple(replace(rule, name=f"eagle_nets.{copy}.{rule.name}") for copy in range(copies) for rule in rules)
    notes = [f"the network is written {copies} times, once for each drafting step"] if copies > 1 else []
    if not network.own_embedding and not network.reduced:
        notes.append("the target's embedding is copied for the network")
    return _merged(model, source, _head_portion(source, model, copied, copies), own, tuple(notes))


def _merged(
    model: Source, source: SpeculatorSource, portion: Portion, own: dict[str, Json], notes: tuple[str, ...]
) -> Ingredients:
    told = tuple(f"{source.kind}: {note}" for note in (*source.notes, *notes))
    return Ingredients((model_portion(model), portion), own, model.weight_type, (*model.notes, *told))


def _drafter(source: SpeculatorSource, config: Mapping[str, Json]) -> Ingredients:
    """A checkpoint of its own; what is not stored is the target's, by reference: the engine holds it once."""
    listed = config.get("taps")
    taps = tuple(tap for tap in listed if isinstance(tap, int)) if isinstance(listed, list | tuple) else ()
    rules = eagle3_rules(source.network) if source.kind is SpeculatorKind.EAGLE3 else mtp_rules(source.network)
    portion = _head_portion(source, None, rules)
    return Ingredients(
        (portion,), drafter_config(source.network, str(config["dtype"]), taps), source.weight_type, source.notes
    )
