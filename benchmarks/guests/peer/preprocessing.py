"""Preprocessing as one writes it first: a transformers tokenizer, one call a request."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import PreTrainedTokenizerFast


class TritonPythonModel:
    """Prompt to ids."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(parameters["tokenizer_dir"]["string_value"])
        self._end_id = int(parameters["end_ids"]["string_value"].split(",")[0])

    def execute(self, requests: Sequence[object]) -> list[object]:
        """One response per request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: object) -> object:
        text = pb_utils.get_input_tensor_by_name(request, "QUERY").as_numpy().reshape(-1)[0].decode("utf-8")
        length = pb_utils.get_input_tensor_by_name(request, "REQUEST_OUTPUT_LEN").as_numpy()
        ids = np.array(self._tokenizer([text], return_tensors="np")["input_ids"], dtype=np.int32)
        words = np.zeros((1, 2, 0), dtype=np.int32)
        arrays = {
            "INPUT_ID": ids,
            "REQUEST_INPUT_LEN": np.array([[ids.shape[1]]], dtype=np.int32),
            "REQUEST_OUTPUT_LEN": length,
            "BAD_WORDS_IDS": words,
            "STOP_WORDS_IDS": words,
            "EMBEDDING_BIAS": np.zeros((1, 0), dtype=np.float32),
            "OUT_END_ID": np.array([[self._end_id]], dtype=np.int32),
            "OUT_PAD_ID": np.array([[self._end_id]], dtype=np.int32),
        }
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse([pb_utils.Tensor(key, arrays[key]) for key in wanted if key in arrays])
