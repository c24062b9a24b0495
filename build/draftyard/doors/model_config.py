"""Writes and reads `config.pbtxt` with the protobuf message of Triton's own client."""

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from draftyard.nouns.errors import Failure
from draftyard.nouns.repository import EnsembleStep, ModelConfig, ModelTensors, Queue, Tensor, TritonType

FILE_NAME = "config.pbtxt"
ENSEMBLE_PLATFORM = "ensemble"
_PREFIX = "TYPE_"


def config_text(config: ModelConfig) -> str:
    """The text form of a configuration; equal values give equal texts."""
    message = messages.ModelConfig(name=config.name, max_batch_size=config.max_batch_size)
    if config.steps:
        message.platform = ENSEMBLE_PLATFORM
        _fill_steps(message, config)
    else:
        message.backend = config.backend
    _fill_inputs(message, config)
    _fill_outputs(message, config)
    if config.decoupled:
        message.model_transaction_policy.decoupled = True
    if config.instance_count:
        message.instance_group.add(count=config.instance_count, kind=messages.ModelInstanceGroup.KIND_CPU)
    _fill_batching(message, config)
    for key, value in config.parameters:
        message.parameters[key].string_value = value
    return str(text_format.MessageToString(message, as_utf8=True))


def parse_config(text: str, name: str) -> ModelConfig:
    """The value of a text; Failure with the line when it does not parse, `name` says whose text it is."""
    message = messages.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise Failure(f"{name}: {error}", "correct the line, or generate the repository again") from error
    queue = _queue(message)
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        max_batch_size=message.max_batch_size,
        tensors=ModelTensors(
            tuple(_input(tensor) for tensor in message.input), tuple(_output(tensor) for tensor in message.output)
        ),
        decoupled=message.model_transaction_policy.decoupled,
        instance_count=sum(group.count for group in message.instance_group),
        batching=message.HasField("dynamic_batching"),
        queue=queue,
        parameters=tuple(sorted((key, entry.string_value) for key, entry in message.parameters.items())),
        steps=tuple(_step(step) for step in message.ensemble_scheduling.step),
    )


def read_model_config(path: Path) -> ModelConfig:
    """The configuration in a file; Failure when it is absent or does not parse."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}", "generate the repository again") from error
    return parse_config(text, str(path))


def _fill_inputs(message: "messages.ModelConfig", config: ModelConfig) -> None:
    for tensor in config.tensors.inputs:
        entry = message.input.add(name=tensor.name, dims=tensor.dims, optional=tensor.optional)
        entry.data_type = messages.DataType.Value(f"{_PREFIX}{tensor.type}")
        entry.allow_ragged_batch = tensor.ragged
        if tensor.scalar:
            entry.reshape.SetInParent()


def _fill_outputs(message: "messages.ModelConfig", config: ModelConfig) -> None:
    for tensor in config.tensors.outputs:
        entry = message.output.add(name=tensor.name, dims=tensor.dims)
        entry.data_type = messages.DataType.Value(f"{_PREFIX}{tensor.type}")


def _fill_batching(message: "messages.ModelConfig", config: ModelConfig) -> None:
    if not config.batching:
        return
    message.dynamic_batching.SetInParent()
    if config.queue is not None:
        message.dynamic_batching.preferred_batch_size.append(config.queue.preferred_batch_size)
        policy = message.dynamic_batching.default_queue_policy
        policy.max_queue_size = config.queue.max_queue_size
        policy.default_timeout_microseconds = config.queue.default_timeout_us
        policy.allow_timeout_override = True


def _fill_steps(message: "messages.ModelConfig", config: ModelConfig) -> None:
    for step in config.steps:
        entry = message.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        for own, outer in step.inputs:
            entry.input_map[own] = outer
        for own, outer in step.outputs:
            entry.output_map[own] = outer


def _input(entry: "messages.ModelInput") -> Tensor:
    return Tensor(
        name=entry.name,
        type=_type(entry.data_type),
        dims=tuple(entry.dims),
        optional=entry.optional,
        scalar=entry.HasField("reshape"),
        ragged=entry.allow_ragged_batch,
    )


def _output(entry: "messages.ModelOutput") -> Tensor:
    return Tensor(entry.name, _type(entry.data_type), tuple(entry.dims))


def _type(number: int) -> TritonType:
    word = str(messages.DataType.Name(number)).removeprefix(_PREFIX)
    if word not in [kind.value for kind in TritonType]:
        raise Failure(f"no model of a repository has a tensor of type {word}", "generate the repository again")
    return TritonType(word)


def _queue(message: "messages.ModelConfig") -> Queue | None:
    batching = message.dynamic_batching
    if not batching.HasField("default_queue_policy"):
        return None
    policy = batching.default_queue_policy
    preferred = max(batching.preferred_batch_size, default=0)
    return Queue(preferred, policy.max_queue_size, policy.default_timeout_microseconds)


def _step(entry: "messages.ModelEnsembling.Step") -> EnsembleStep:
    return EnsembleStep(
        entry.model_name, tuple(sorted(entry.input_map.items())), tuple(sorted(entry.output_map.items()))
    )
