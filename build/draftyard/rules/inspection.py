"""Holds a model's settings, tokenizer and tensor headers against each other and finds every contradiction."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from draftyard.nouns.digest import Json
from draftyard.nouns.errors import Problem
from draftyard.nouns.network import Network
from draftyard.nouns.source import ModelFiles, StoredFp8, TokenizerFacts
from draftyard.nouns.tensor import TensorHeader, TensorType, name_list
from draftyard.rules.families.family import TensorTable, source_tensors
from draftyard.rules.families.known_families import FAMILIES, family_of
from draftyard.rules.stored_fp8 import find_fp8, stored_fp8

HEAD_NAME = "lm_head.weight"
EMBEDDING_NAME = "model.embed_tokens.weight"
_WEIGHT_TYPES = {TensorType.F32, TensorType.F16, TensorType.BF16}
_TYPE_WORDS = {"float32": TensorType.F32, "float16": TensorType.F16, "bfloat16": TensorType.BF16}
# The rotary frequencies some trainers saved; they follow from the config.
# GPTQ and AWQ name alike; bitsandbytes keeps its scales beside each weight.
_PACKED = {"GPTQ or AWQ": (".qweight", ".qzeros"), "bitsandbytes": (".absmax", ".quant_map", ".SCB")}
_IGNORED_ENDINGS = (".rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the directory came to. `head_copy` means: tied, yet a head is stored, whose bytes must be compared."""

    network: Network | None
    weight_type: TensorType
    end_ids: tuple[int, ...]
    head_copy: bool
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    fp8: StoredFp8 | None = None


def examine(stored: ModelFiles) -> Inspection:
    """Resolve every fact once; contradictions are all collected, the files' own problems first."""
    problems, notes = list(stored.problems), list(stored.notes)
    finding = find_fp8(stored)
    problems.extend(finding.problems)
    files = finding.files
    network = _network(files.config, finding.claimed, problems, notes) if files.config else None
    weight_type = _weight_type(files, problems, notes)
    head_copy = False
    if network is not None:
        expected = source_tensors(FAMILIES[network.family].rules(network))
        head_copy = _compare_tensors(files, network, expected, problems, notes)
    end_ids: tuple[int, ...] = ()
    if files.tokenizer is not None and files.config:
        end_ids = _end_ids(files, files.tokenizer, problems)
        _compare_special_ids(files, files.tokenizer, notes)
        if network is not None:
            _check_vocabulary(network, files.tokenizer, end_ids, problems, notes)
    fp8 = None
    if finding.claimed and network is not None and not finding.problems:
        fp8 = _stored_fp8(finding.method, stored, network, problems, notes)
    return Inspection(network, weight_type, end_ids, head_copy, tuple(problems), tuple(notes), fp8)


def ignored(name: str) -> bool:
    """True for a stored tensor that no checkpoint needs."""
    return name.endswith(_IGNORED_ENDINGS)


def _stored_fp8(
    method: str, files: ModelFiles, network: Network, problems: list[Problem], notes: list[str]
) -> StoredFp8 | None:
    found = stored_fp8(method, files, FAMILIES[network.family].rules(network))
    if not isinstance(found, StoredFp8):
        problems.extend(found)
        return None
    notes.append(f"weights are FP8 with one scale a tensor, written by {method}")
    return found


def _network(config: Mapping[str, Json], fp8: bool, problems: list[Problem], notes: list[str]) -> Network | None:
    quantisation = config.get("quantization_config")
    if isinstance(quantisation, Mapping) and not fp8:
        method = quantisation.get("quant_method") or _method_of_keys(quantisation)
        problems.append(
            Problem(f"the weights are quantised with {method}, which is not supported", "give the unquantised model")
        )
    family = family_of(config)
    if isinstance(family, Problem):
        problems.append(family)
        return None
    resolution = family.resolve(config)
    problems.extend(resolution.problems)
    notes.extend(resolution.notes)
    return resolution.network


def _method_of_keys(quantisation: Mapping[str, Json]) -> str:
    """Older configs say how, but not by which method."""
    if any(key in quantisation for key in ("load_in_4bit", "load_in_8bit")):
        return "bitsandbytes"
    return "an unnamed method"


def _packed_by(names: list[str]) -> str | None:
    """The method whose tensors these are, where a config does not tell."""
    for method, endings in _PACKED.items():
        if any(name.endswith(endings) for name in names):
            return method
    return None


def _weight_type(files: ModelFiles, problems: list[Problem], notes: list[str]) -> TensorType:
    """The element type that most bytes have."""
    bytes_by_type: Counter[TensorType] = Counter()
    others: list[str] = []
    for tensor in files.tensors:
        if tensor.type in _WEIGHT_TYPES:
            bytes_by_type[tensor.type] += tensor.size_bytes
        elif not ignored(tensor.name):
            others.append(f"{tensor.name} ({tensor.type})")
    if others:
        method = _packed_by([tensor.name for tensor in files.tensors])
        packed = f" (packed by {method})" if method else ""
        problems.append(
            Problem(
                f"tensors of a type that is no plain weight{packed}: {name_list(others)}", "give the unquantised model"
            )
        )
    if not bytes_by_type:
        return TensorType.F32
    weight_type = bytes_by_type.most_common(1)[0][0]
    named = files.config.get("dtype") or files.config.get("torch_dtype")
    if isinstance(named, str) and _TYPE_WORDS.get(named) not in (None, weight_type):
        notes.append(f"config.json says {named}, the files hold {weight_type}: the files count")
    return weight_type


def _compare_tensors(
    files: ModelFiles, network: Network, expected: TensorTable, problems: list[Problem], notes: list[str]
) -> bool:
    """Names and shapes, both ways; returns whether a tied head is stored again."""
    found = {tensor.name: tensor for tensor in files.tensors}
    promised = set(found) | set(files.listed)
    missing = [name for name in expected if name not in promised]
    if files.tensors or files.listed:
        _report_missing(missing, network, problems)
    head_copy = network.tied_head and HEAD_NAME in found and EMBEDDING_NAME in found
    extra = [name for name in found if name not in expected and not ignored(name)]
    if head_copy:
        extra.remove(HEAD_NAME)
        expected = {**expected, HEAD_NAME: expected[EMBEDDING_NAME]}
    if extra:
        hint = "check model_type, num_hidden_layers and the bias settings of config.json"
        if any(name.startswith("language_model.") for name in extra):
            hint = "save the language model out of its wrapper (the prefix language_model.)"
        problems.append(
            Problem(f"tensors that {network.architecture} has no place for: {name_list(sorted(extra))}", hint)
        )
    skipped = [name for name in found if ignored(name)]
    if skipped:
        notes.append(f"ignored: {name_list(sorted(skipped))}")
    problems.extend(_shape_problems(found, network, expected))
    if network.tied_head:
        notes.append("lm_head: tied")
    return head_copy


def _report_missing(missing: list[str], network: Network, problems: list[Problem]) -> None:
    if HEAD_NAME in missing:
        missing.remove(HEAD_NAME)
        problems.append(
            Problem(
                f"{HEAD_NAME} missing and embeddings are not tied",
                "fetch the head's weights, or set tie_word_embeddings to true if the model was trained so",
            )
        )
    if missing:
        problems.append(
            Problem(
                f"no file holds the tensors that {network.architecture} needs: {name_list(missing)}",
                "fetch the missing files, or check model_type and num_hidden_layers of config.json",
            )
        )


def _shape_problems(found: Mapping[str, TensorHeader], network: Network, expected: TensorTable) -> list[Problem]:
    """One problem for each kind of tensor, with the first name, both shapes and the config fields used."""
    wrong: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            kind = ".".join(part for part in name.split(".") if not part.isdecimal())
            wrong.setdefault((kind, found[name].shape), []).append(name)
    problems = []
    for (kind, shape), names in wrong.items():
        times = f" (and {len(names) - 1} more layers)" if len(names) > 1 else ""
        message = (
            f"{names[0]}{times} has shape {list(shape)}, expected {list(expected[names[0]])}{_fields(kind, network)}"
        )
        problems.append(Problem(message, "correct these fields of config.json, or fetch the files of one revision"))
    return problems


def _fields(kind: str, network: Network) -> str:
    heads = f"head size {network.head_size}"
    if "q_proj" in kind or "o_proj" in kind:
        return f" (num_attention_heads {network.heads}, {heads}, hidden_size {network.hidden_size})"
    if "k_proj" in kind or "v_proj" in kind:
        return f" (num_key_value_heads {network.kv_heads}, {heads}, hidden_size {network.hidden_size})"
    if "q_norm" in kind or "k_norm" in kind:
        return f" ({heads})"
    if ".mlp." in kind:
        return f" (intermediate_size {network.intermediate_size}, hidden_size {network.hidden_size})"
    if "embed_tokens" in kind or "lm_head" in kind:
        return f" (vocab_size {network.vocab_size}, hidden_size {network.hidden_size})"
    return f" (hidden_size {network.hidden_size})"


def _ids(settings: Mapping[str, Json], file: str, problems: list[Problem]) -> list[int]:
    value = settings.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    whole = [item for item in values if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
    if len(whole) != len(values):
        problems.append(Problem(f"{file}: eos_token_id is {value!r}, no list of ids", f"correct {file}"))
    return whole


def _end_ids(files: ModelFiles, tokenizer: TokenizerFacts, problems: list[Problem]) -> tuple[int, ...]:
    """The tokenizer's id first, then those of generation_config.json and config.json.

    A tokenizer whose id neither file knows contradicts them; no id anywhere would never end a text.
    """
    declared = [
        *_ids(files.generation_config, "generation_config.json", problems),
        *_ids(files.config, "config.json", problems),
    ]
    own = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    if own and declared and own[0] not in declared:
        problems.append(
            Problem(
                f"the tokenizer ends texts with id {own[0]}, but config.json and generation_config.json "
                f"say {', '.join(str(index) for index in dict.fromkeys(declared))}",
                "correct eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
            )
        )
    if not own and not declared:
        problems.append(Problem("no file says which token ends a text", "add eos_token_id to generation_config.json"))
    return tuple(dict.fromkeys([*own, *declared]))


def _compare_special_ids(files: ModelFiles, tokenizer: TokenizerFacts, notes: list[str]) -> None:
    for word, own in (("bos", tokenizer.bos_id), ("pad", tokenizer.pad_id)):
        key = f"{word}_token_id"
        values = {
            "tokenizer": own,
            "generation_config.json": files.generation_config.get(key),
            "config.json": files.config.get(key),
        }
        given = {name: value for name, value in values.items() if value is not None}
        if len(set(map(str, given.values()))) > 1:
            notes.append(f"{word} ids differ: " + ", ".join(f"{name} {value}" for name, value in given.items()))


def _check_vocabulary(
    network: Network, tokenizer: TokenizerFacts, end_ids: tuple[int, ...], problems: list[Problem], notes: list[str]
) -> None:
    largest = max((tokenizer.largest_id, *end_ids))
    if largest >= network.vocab_size:
        problems.append(
            Problem(
                f"token id {largest} has no row in the embedding (vocab_size {network.vocab_size})",
                "give the tokenizer that the model was trained with",
            )
        )
    elif tokenizer.largest_id + 1 < network.vocab_size:
        notes.append(
            f"the embedding has {network.vocab_size} rows, the tokenizer's largest id is {tokenizer.largest_id}"
        )
