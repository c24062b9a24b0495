"""Postprocessing: complete token sequences to text, for the ensemble."""

from collections.abc import Mapping, Sequence

import numpy as np
from bad_input import BadInput
from model_parameters import ModelParameters
from seam import Array, Request, error_response, failed_response, input_arrays, log_error, response, texts
from sequences import valid_ids
from tokenizer_files import TokenizerBundle, read_tokenizer


class TritonPythonModel:
    """One instance; each call is decoded by itself."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer; what cannot be read stops the load."""
        parameters = ModelParameters.of(args["model_config"])
        self._tokenizer: TokenizerBundle = read_tokenizer(parameters.directory("tokenizer_dir"))
        self._skip_special_tokens = parameters.flag("skip_special_tokens", True)

    def execute(self, requests: Sequence[Request]) -> list[object]:
        """One response per request; an error stays with its request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> object:
        try:
            return response({"OUTPUT": self._output(input_arrays(request))}, request.requested_output_names())
        except BadInput as error:
            return error_response(str(error))
        except Exception as error:  # a fault of ours must not take the other requests along
            log_error(f"postprocessing: {type(error).__name__}: {error}")
            return failed_response(f"postprocessing failed: {type(error).__name__}: {error}")

    def _output(self, inputs: Mapping[str, Array]) -> Array:
        """One text per sequence, batch first, then beam."""
        sequences = valid_ids(np.asarray(inputs["TOKENS_BATCH"]), np.asarray(inputs["SEQUENCE_LENGTH"]))
        decode = self._tokenizer.codec.decode
        decoded = [decode(ids, skip_special_tokens=self._skip_special_tokens) for ids in sequences]
        batch = np.asarray(inputs["TOKENS_BATCH"]).shape[0]
        return texts(decoded).reshape(batch, -1)
