"""The typed seam to the Python backend's module, which exists only inside the server."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

Array: TypeAlias = "npt.NDArray[np.generic]"
Arrays: TypeAlias = "Mapping[str, Array]"
ParameterValue: TypeAlias = "bool | int | str"


SETTLE_S = 0.2


class Sender(Protocol):
    """Where the responses of one request go."""

    def send(self, response: object = None, flags: int = 0) -> None:
        """Send a response, or only flags."""
        ...

    def is_cancelled(self) -> bool:
        """True when the client has gone; costs a round trip to the server."""
        ...


class Request(Protocol):
    """A request as the backend hands it over."""

    def request_id(self) -> str:
        """The client's id, "" when it sent none."""
        ...

    def parameters(self) -> str:
        """Request parameters, as JSON text."""
        ...

    def requested_output_names(self) -> Sequence[str]:
        """The outputs that the client wants."""
        ...

    def get_response_sender(self) -> Sender:
        """The sender of a decoupled model."""
        ...

    def inputs(self) -> Sequence[object]:
        """The input tensors."""
        ...


class ModelError(Exception):
    """Another model answered with an error; Triton 24.10 hands on its message, and every code as "internal"."""


def input_arrays(request: Request) -> dict[str, Array]:
    """All inputs of a request by name."""
    tensors = cast("Sequence[_Tensor]", request.inputs())
    return {tensor.name(): tensor.as_numpy() for tensor in tensors}


class _Tensor(Protocol):
    def name(self) -> str: ...

    def as_numpy(self) -> Array: ...


class _Response(Protocol):
    def has_error(self) -> bool: ...

    def error(self) -> object: ...

    def output_tensors(self) -> Sequence[_Tensor]: ...


def response(arrays: Arrays, wanted: Sequence[str]) -> object:
    """A response with those arrays that the client wants."""
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, arrays[name]) for name in wanted if name in arrays])


def error_response(message: str) -> object:
    """A response that refuses; the code says that the request was wrong."""
    return pb_utils.InferenceResponse([], pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))


def failed_response(message: str) -> object:
    """A response that reports a failure of the server's side."""
    return pb_utils.InferenceResponse([], pb_utils.TritonError(message))


def busy_response(message: str) -> object:
    """A response that asks to come back later."""
    return pb_utils.InferenceResponse([], pb_utils.TritonError(message, pb_utils.TritonError.UNAVAILABLE))


def send(sender: Sender, answer: object, final: bool) -> None:
    """Send a response; the final one carries the flag that ends the stream."""
    sender.send(answer, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)


def send_end(sender: Sender) -> None:
    """End a stream with the bare flag."""
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def outbound(
    model: str, inputs: Arrays, outputs: Sequence[str], request_id: str = "", parameters: str = "{}"
) -> "_Outbound":
    """A request to another model of this server; `parameters` is a JSON object of flags, whole numbers and texts."""
    return cast(
        "_Outbound",
        pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=list(outputs),
            inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
            request_id=request_id,
            parameters=json.loads(parameters),
        ),
    )


class _Outbound(Protocol):
    def exec(self, decoupled: bool = False) -> object: ...


def call(request: "_Outbound") -> dict[str, Array]:
    """Send to a model that answers once; `ModelError` carries its message."""
    return _arrays(cast("_Response", request.exec()))


def stream(request: "_Outbound") -> Iterator[dict[str, Array]]:
    """Send to a decoupled model; each response by name of output, {} for one that is empty."""
    answers = cast("Iterator[_Response]", request.exec(decoupled=True))
    try:
        for answer in answers:
            yield _arrays(answer)
    finally:
        _KEPT.keep(answers)


class _KeptIterators:
    """Holds iterators that have ended for a while.

    The Python backend of Triton 24.10 shares an iterator with a thread of its own, which lets go of it a moment after
    its last response. Where that is the last reference, Python objects are freed without the interpreter's lock and
    the process dies ("double free or corruption"). So ours has to be the last one.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._ended: deque[tuple[float, object]] = deque()
        self._lock = threading.Lock()

    def keep(self, iterator: object) -> None:
        """Hold this one, and let go of those that were held long enough."""
        now = time.monotonic()
        released = []
        with self._lock:
            self._ended.append((now, iterator))
            while self._ended[0][0] < now - self._keep_s:
                released.append(self._ended.popleft())

    def release(self) -> None:
        """Let go of all, which must happen before the process ends; waits until the other thread has done so."""
        time.sleep(SETTLE_S)
        with self._lock:
            self._ended.clear()


_KEPT = _KeptIterators(keep_s=5.0)


def release_streams() -> None:
    """To be called from `finalize` by a model that used `stream`."""
    _KEPT.release()


def _arrays(answer: _Response) -> dict[str, Array]:
    if answer.has_error():
        message = getattr(answer.error(), "message", None)
        raise ModelError(message() if callable(message) else str(answer.error()))
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}


def texts(values: Sequence[str]) -> Array:
    """A string tensor of shape [n]."""
    return np.array([value.encode("utf-8") for value in values], dtype=np.object_)


def log_info(message: str) -> None:
    """A line in the server's log."""
    pb_utils.Logger.log_info(message)


def log_error(message: str) -> None:
    """An error line in the server's log."""
    pb_utils.Logger.log_error(message)
