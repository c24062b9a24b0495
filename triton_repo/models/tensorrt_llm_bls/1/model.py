"""The entry of the server: text in, a stream of text out, from engines that speculate inside or have a draft."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bad_input import BadInput
from detokeniser import IncrementalDetokeniser
from draft_loop import DraftLoop
from draft_policy import DraftPolicy, PolicyFile
from engine_calls import OneEngine, TokenSource
from entry_metrics import EntryMetrics
from entry_request import EntryDefaults, parse_request
from entry_stream import EntryServices, EntryStream
from model_parameters import ModelParameters
from seam import Request, Sender, busy_response, error_response, input_arrays, log_error, release_streams, send
from tokenizer_files import TokenizerBundle, read_tokenizer
from watcher import Watcher

CLOSE_WAIT_S = 5.0
POLICY_FILE = "policy.json"


def detokeniser(tokenizer: TokenizerBundle, skip_special_tokens: bool) -> IncrementalDetokeniser:
    """A fresh one for one sequence."""
    decode = tokenizer.codec.decode
    return IncrementalDetokeniser(
        lambda ids: decode(ids, skip_special_tokens=skip_special_tokens),
        tokenizer.byte_ids,
        tokenizer.special_ids if skip_special_tokens else frozenset(),
    )


def token_source(parameters: ModelParameters, policy: DraftPolicy) -> TokenSource:
    """The engine alone, or with the draft model that the configuration names."""
    target = parameters.text("tensorrt_llm_model_name", "tensorrt_llm")
    draft = parameters.text("tensorrt_llm_draft_model_name", "")
    if not draft:
        return OneEngine(target, policy)
    longest = parameters.integer("max_draft_len", None)
    if not longest or longest < 0:
        raise ValueError("parameter max_draft_len must be above 0 where a draft model is named")
    return DraftLoop(target, draft, longest, policy, not parameters.flag("engine_emits_end_id", True))


class TritonPythonModel:
    """One instance serves all streams: each has a thread, because reading another model's stream blocks."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read parameters and tokenizer; what cannot be read stops the load."""
        parameters = ModelParameters.of(args["model_config"])
        tokenizer = read_tokenizer(parameters.directory("tokenizer_dir"))
        skip_special_tokens = parameters.flag("skip_special_tokens", True)
        self._defaults = EntryDefaults(
            parameters.number("default_timeout_s", 300.0), parameters.words("allowed_request_parameters")
        )
        self._max_streams = parameters.integer("max_streams", 512) or 512
        self._policy = DraftPolicy()
        self._policy_file = PolicyFile(Path(parameters.text("policy_file", POLICY_FILE)), self._policy, log_error)
        self._policy_file.load()
        self._metrics = EntryMetrics()
        source = token_source(parameters, self._policy)
        self._services = EntryServices(
            source=source,
            new_detokeniser=lambda: detokeniser(tokenizer, skip_special_tokens),
            further_end_ids=frozenset(parameters.integers("end_ids")),
            silent_end=not parameters.flag("engine_emits_end_id", True),
            stall_timeout_s=parameters.number("stall_timeout_s", 60.0),
            ended=self._metrics.ended,
        )
        period_ms = parameters.integer("cancellation_check_period_ms", 100) or 100
        self._watcher = Watcher(period_ms / 1000, source.stop, log_error, self._tick)
        self._watcher.start()
        self._threads = ThreadPoolExecutor(self._max_streams, "stream")

    def execute(self, requests: Sequence[Request]) -> None:
        """Take the requests and return at once; their threads answer."""
        for request in requests:
            self._accept(request, request.get_response_sender())

    def finalize(self) -> None:
        """End what still runs, so that the server can go."""
        for stream in self._watcher.running():
            if isinstance(stream, EntryStream):
                stream.abort("the server is shutting down")
        self._watcher.close(CLOSE_WAIT_S)
        self._threads.shutdown(wait=not self._watcher.running(), cancel_futures=True)
        self._metrics.close()
        release_streams()

    def _tick(self) -> None:
        self._policy_file.poll()
        self._metrics.tick(self._policy.limit, self._policy.changes)

    def _accept(self, request: Request, sender: Sender) -> None:
        try:
            parsed = parse_request(input_arrays(request), request.parameters(), self._defaults)
        except BadInput as error:
            self._metrics.ended("refused", {})
            send(sender, error_response(str(error)), final=True)
            return
        if len(self._watcher.running()) >= self._max_streams:
            self._metrics.ended("refused", {})
            send(sender, busy_response(f"{self._max_streams} requests are running: try again later"), final=True)
            return
        stream = EntryStream(self._services, parsed, sender, tuple(request.requested_output_names()))
        self._watcher.add(stream)
        self._threads.submit(self._run, stream)

    def _run(self, stream: EntryStream) -> None:
        self._metrics.began()
        self._policy.began()
        try:
            stream.run()
        finally:
            self._watcher.remove(stream)
            self._policy.left()
            self._metrics.left()
