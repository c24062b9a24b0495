"""The reference engine in the place of TensorRT-LLM's C++ backend: same tensors, no GPU needed."""

import itertools
import json
import threading
import time
from collections.abc import Mapping, Sequence

from bad_input import BadInput
from engine_request import is_stop, parse_call
from held_requests import HeldRequest, HeldRequests
from model_parameters import ModelParameters
from seam import (
    Request,
    Sender,
    error_response,
    failed_response,
    input_arrays,
    log_error,
    log_info,
    send,
    send_end,
)

from draftyard.doors.tensors import open_tensor_file
from draftyard.engine.loading import load_engine
from draftyard.engine.loop import EngineLoop
from draftyard.nouns.errors import Failure

IN_FLIGHT_BATCHING = ("inflight_batching", "inflight_fused_batching")


def held_at_most(model_config: str, max_batch_size: int) -> int | None:
    """Requests that may run and wait; None where the configuration sets no queue limit."""
    batching = json.loads(model_config).get("dynamic_batching", {})
    queue = int(batching.get("default_queue_policy", {}).get("max_queue_size", 0))
    return max_batch_size + queue if queue else None


class TritonPythonModel:
    """One instance holds one engine; requests of all clients are decoded together."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the engine; what cannot be read stops the load."""
        parameters = ModelParameters.of(args["model_config"])
        batching = parameters.text("gpt_model_type", IN_FLIGHT_BATCHING[1])
        if batching not in IN_FLIGHT_BATCHING:
            raise ValueError(f"parameter gpt_model_type: {batching!r} is none of {IN_FLIGHT_BATCHING}")
        if not json.loads(args["model_config"]).get("model_transaction_policy", {}).get("decoupled", False):
            raise ValueError("the reference engine answers in streams: set model_transaction_policy.decoupled")
        try:
            engine = load_engine(parameters.directory("gpt_model_path"), open_tensor_file)
        except Failure as failure:
            raise ValueError(f"{failure.message}: {failure.hint}") from failure
        asked = parameters.integer("max_tokens_in_paged_kv_cache", None)
        if asked is not None and asked != engine.limits.kv_cache_tokens:
            raise ValueError(
                f"parameter max_tokens_in_paged_kv_cache is {asked}, the engine was made for "
                f"{engine.limits.kv_cache_tokens}: package the repository again"
            )
        self._exclude_input = parameters.flag("exclude_input_in_output", False)
        self._held = HeldRequests(held_at_most(args["model_config"], engine.limits.max_batch_size))
        self._numbers = itertools.count()
        self._loop = EngineLoop(engine, self._held.deliver)
        self._loop.start()
        self._closed = threading.Event()
        self._period_s = (parameters.integer("cancellation_check_period_ms", 100) or 100) / 1000
        self._watch = threading.Thread(target=self._watch_clients, name="watch", daemon=True)
        self._watch.start()
        log_info(f"reference engine loaded from {parameters.text('gpt_model_path', '')}")

    def execute(self, requests: Sequence[Request]) -> None:
        """Queue the requests and return at once; the engine's thread answers."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._accept(request, sender)
            except BadInput as error:
                send(sender, error_response(str(error)), final=True)
            except Exception as error:  # a fault of ours must not take the other requests along
                log_error(f"tensorrt_llm: {type(error).__name__}: {error}")
                send(sender, failed_response(f"{type(error).__name__}: {error}"), final=True)

    def finalize(self) -> None:
        """Stop the engine and end what still runs."""
        self._closed.set()
        self._watch.join()
        self._loop.stop()
        self._held.end_all("the server is shutting down")

    def _accept(self, request: Request, sender: Sender) -> None:
        inputs = input_arrays(request)
        if is_stop(inputs):
            self._stop(request.request_id())
            send_end(sender)
            return
        engine_id = f"{request.request_id()}#{next(self._numbers)}"
        call = parse_call(inputs, request.parameters(), engine_id, self._exclude_input)
        wanted = tuple(request.requested_output_names())
        held = HeldRequest(request.request_id(), call, sender, wanted, time.monotonic_ns())
        if not self._held.add(engine_id, held):
            raise BadInput("the queue is full: try again later, or raise serving.max_queue_size")
        try:
            self._loop.submit(call.generation)
        except Failure as failure:
            self._held.drop(engine_id)
            raise BadInput(f"{failure.message}: {failure.hint}") from None

    def _stop(self, client_id: str) -> None:
        if not client_id:
            raise BadInput("a stop request needs the id of the request that it ends")
        for engine_id in self._held.of_client(client_id):
            self._loop.cancel(engine_id)

    def _watch_clients(self) -> None:
        while not self._closed.wait(self._period_s):
            for engine_id in self._held.cancelled():
                self._loop.cancel(engine_id)
