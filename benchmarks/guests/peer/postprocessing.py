"""Postprocessing as one writes it first: a transformers tokenizer, one call a response."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils
from transformers import PreTrainedTokenizerFast


class TritonPythonModel:
    """Ids to text."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(parameters["tokenizer_dir"]["string_value"])

    def execute(self, requests: Sequence[object]) -> list[object]:
        """One response per request."""
        responses = []
        for request in requests:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [
                self._tokenizer.decode(row[:length], skip_special_tokens=True).encode("utf-8")
                for row, length in zip(tokens.reshape(-1, tokens.shape[-1]), lengths.reshape(-1), strict=True)
            ]
            output = pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_).reshape(tokens.shape[0], -1))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
