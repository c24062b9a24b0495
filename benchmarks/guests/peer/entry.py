"""The entry as one writes it first: a thread a request, and the whole text decoded anew for each token.

Decoding all ids each time is what keeps characters whole without an incremental detokeniser. The parameter `decoding`
says who does it: `model` asks the postprocessing model, as entries composed of models do, `inline` does it here, and
`none` passes responses on without any text, which is what the server alone costs.
"""

import json
import threading
from collections.abc import Mapping, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import PreTrainedTokenizerFast

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
OUTPUTS = (
    "INPUT_ID",
    "REQUEST_INPUT_LEN",
    "REQUEST_OUTPUT_LEN",
    "BAD_WORDS_IDS",
    "STOP_WORDS_IDS",
    "EMBEDDING_BIAS",
    "OUT_END_ID",
    "OUT_PAD_ID",
)
TO_ENGINE = (("INPUT_ID", "input_ids"), ("REQUEST_INPUT_LEN", "input_lengths"), ("OUT_END_ID", "end_id"))


class TritonPythonModel:
    """Text in, a stream of text out."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(parameters["tokenizer_dir"]["string_value"])
        self._decoding = parameters["decoding"]["string_value"]
        self._kept: list[object] = []

    def execute(self, requests: Sequence[object]) -> None:
        """A thread for each request."""
        for request in requests:
            threading.Thread(target=self._answer, args=(request, request.get_response_sender())).start()

    def _answer(self, request: object, sender: object) -> None:
        length = pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy()
        query = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        inputs = [pb_utils.Tensor("QUERY", query), pb_utils.Tensor("REQUEST_OUTPUT_LEN", length)]
        call = pb_utils.InferenceRequest(
            model_name="preprocessing", requested_output_names=list(OUTPUTS), inputs=inputs
        )
        prompt = {tensor.name(): tensor.as_numpy() for tensor in call.exec().output_tensors()}
        tensors = [pb_utils.Tensor(name, prompt[key]) for key, name in TO_ENGINE]
        tensors.append(pb_utils.Tensor("request_output_len", length))
        tensors.append(pb_utils.Tensor("streaming", np.array([[True]])))
        engine = pb_utils.InferenceRequest(
            model_name="tensorrt_llm", requested_output_names=["output_ids", "sequence_length"], inputs=tensors
        )
        self._stream(engine.exec(decoupled=True), sender)

    def _stream(self, answers: object, sender: object) -> None:
        ids: list[int] = []
        shown = ""
        for answer in answers:
            new = [tensor.as_numpy() for tensor in answer.output_tensors() if tensor.name() == "output_ids"]
            if not new:
                continue
            ids.extend(new[0].reshape(-1).tolist())
            text = self._decode(ids)
            delta = "" if text.endswith("\ufffd") else text[len(shown) :]
            shown += delta
            sender.send(pb_utils.InferenceResponse([_text(delta)]))
        rest = self._decode(ids)[len(shown) :]
        sender.send(pb_utils.InferenceResponse([_text(rest)]), flags=FINAL)
        self._kept.append(answers)  # Triton 24.10 frees it without the interpreter's lock otherwise

    def _decode(self, ids: list[int]) -> str:
        if self._decoding == "none":
            return ""
        if self._decoding == "inline":
            return str(self._tokenizer.decode(ids, skip_special_tokens=True))
        tokens = pb_utils.Tensor("TOKENS_BATCH", np.array([[ids]], dtype=np.int32))
        length = pb_utils.Tensor("SEQUENCE_LENGTH", np.array([[len(ids)]], dtype=np.int32))
        call = pb_utils.InferenceRequest(
            model_name="postprocessing", requested_output_names=["OUTPUT"], inputs=[tokens, length]
        )
        (output,) = call.exec().output_tensors()
        return str(output.as_numpy().reshape(-1)[0].decode("utf-8"))


def _text(text: str) -> object:
    return pb_utils.Tensor("text_output", np.array([[text.encode("utf-8")]], dtype=np.object_))
