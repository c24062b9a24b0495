"""How long a sequence a network can be executed for."""

from draftyard.engine.configuration import DecoderShape, EngineLimits
from draftyard.engine.rotary import rotary_limit
from draftyard.nouns.errors import Failure


def refuse_lengths(shape: DecoderShape, limits: EngineLimits) -> None:
    """Failure when sequences may be longer than what attention sees or the rotary scaling is executed for."""
    if shape.sliding_window is not None and shape.sliding_window < limits.max_seq_len:
        raise Failure(
            f"attention of this model sees {shape.sliding_window} tokens, the engine takes {limits.max_seq_len}",
            f"the reference lane has no sliding window: build with max_seq_len {shape.sliding_window} or less",
        )
    longest = rotary_limit(shape)
    if longest is not None and longest < limits.max_seq_len:
        raise Failure(
            f"the rotary scaling of this model is executed up to {longest} tokens, the engine takes "
            f"{limits.max_seq_len}",
            f"build with max_seq_len {longest} or less",
        )
