"""Preprocessing: text to token ids, words to id lists, lengths checked against the engine's."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
from bad_input import BadInput
from chat import ChatRenderer
from model_parameters import ModelParameters
from prompts import Limits, check_lengths, check_token_id, padded, prompt_ids, readable
from seam import Array, Request, error_response, failed_response, input_arrays, log_error, response
from tokenizer_files import TokenizerBundle, read_tokenizer
from word_lists import WordIds, batch_of_two_rows, vocabulary_bias, word_ids


def text_rows(inputs: Mapping[str, Array], name: str, batch: int, shown: str) -> list[list[str]]:
    """A string input of shape [batch, n] as texts; rows of none when it was not sent; "" entries are padding."""
    array = inputs.get(name)
    if array is None:
        return [[] for _ in range(batch)]
    rows = np.asarray(array).reshape(batch, -1).tolist()
    return [[readable(entry, shown) for entry in row if entry != b""] for row in rows]


def one_per_row(inputs: Mapping[str, Array], name: str, batch: int) -> list[int] | None:
    """An integer input of shape [batch, 1]; None when it was not sent."""
    array = inputs.get(name)
    return None if array is None else [int(value) for value in np.asarray(array).reshape(batch)]


class TritonPythonModel:
    """One instance; holds the tokenizer and nothing of any request."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the tokenizer; what cannot be read stops the load."""
        parameters = ModelParameters.of(args["model_config"])
        self._tokenizer: TokenizerBundle = read_tokenizer(parameters.directory("tokenizer_dir"))
        self._add_special_tokens = parameters.flag("add_special_tokens", True)
        self._limits = Limits(parameters.integer("max_input_len", None), parameters.integer("max_seq_len", None))
        eos = self._tokenizer.eos
        self._end_ids = parameters.integers("end_ids") or ((eos.id,) if eos else ())
        pad = self._tokenizer.pad
        self._pad_id = pad.id if pad else (self._end_ids[0] if self._end_ids else 0)
        self._vocabulary_size = parameters.integer("vocab_size", None) or self._tokenizer.codec.get_vocab_size()
        specials = {"bos_token": self._tokenizer.bos, "eos_token": eos, "pad_token": pad}
        names = {name: token.text for name, token in specials.items() if token}
        template = self._tokenizer.chat_template
        self._chat = ChatRenderer(template, names) if template else None

    def execute(self, requests: Sequence[Request]) -> list[object]:
        """One response per request; an error stays with its request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> object:
        try:
            chat = json.loads(request.parameters() or "{}").get("chat", False)
            if not isinstance(chat, bool):
                raise BadInput(f"request parameter chat is {chat!r}: send true or false")
            arrays = self._outputs(input_arrays(request), chat)
            return response(arrays, request.requested_output_names())
        except BadInput as error:
            return error_response(str(error))
        except Exception as error:  # a fault of ours must not take the other requests along
            log_error(f"preprocessing: {type(error).__name__}: {error}")
            return failed_response(f"preprocessing failed: {type(error).__name__}: {error}")

    def _outputs(self, inputs: Mapping[str, Array], chat: bool) -> dict[str, Array]:
        queries = [readable(raw, "text_input") for raw in np.asarray(inputs["QUERY"]).reshape(-1).tolist()]
        batch = len(queries)
        lengths = one_per_row(inputs, "REQUEST_OUTPUT_LEN", batch) or []
        prompts = [self._prompt(text, chat) for text in queries]
        for prompt, max_tokens in zip(prompts, lengths, strict=True):
            check_lengths(len(prompt), max_tokens, self._limits)
        end_ids, extra = self._ends(inputs, batch)
        pads = one_per_row(inputs, "PAD_ID", batch) or [self._pad_id] * batch
        for pad_id in pads:
            check_token_id(pad_id, self._vocabulary_size, "pad_id")
        fill = max(pads[0], 0)
        return {
            "INPUT_ID": np.array(padded(prompts, fill), dtype=np.int32),
            "REQUEST_INPUT_LEN": np.array([[len(prompt)] for prompt in prompts], dtype=np.int32),
            "DECODER_INPUT_ID": np.full((batch, 1), fill, dtype=np.int32),
            "REQUEST_DECODER_INPUT_LEN": np.ones((batch, 1), dtype=np.int32),
            "REQUEST_OUTPUT_LEN": np.array(lengths, dtype=np.int32).reshape(batch, 1),
            "BAD_WORDS_IDS": self._words(inputs, "BAD_WORDS_DICT", batch, "bad_words", ()),
            "STOP_WORDS_IDS": self._words(inputs, "STOP_WORDS_DICT", batch, "stop_words", extra),
            "EMBEDDING_BIAS": self._bias(inputs, batch),
            "OUT_END_ID": np.array(end_ids, dtype=np.int32).reshape(batch, 1),
            "OUT_PAD_ID": np.array(pads, dtype=np.int32).reshape(batch, 1),
        }

    def _prompt(self, text: str, chat: bool) -> tuple[int, ...]:
        codec = self._tokenizer.codec
        if not chat:
            return prompt_ids(codec, text, self._tokenizer.bos, self._add_special_tokens)
        if self._chat is None:
            raise BadInput("chat is true, but this model's tokenizer has no chat template: send plain text")
        return prompt_ids(codec, self._chat.render(text), self._tokenizer.bos, False)

    def _ends(self, inputs: Mapping[str, Array], batch: int) -> tuple[list[int], WordIds]:
        """The end id of each row, and further end ids as one-token stop words; a client's own replaces them all."""
        asked = one_per_row(inputs, "END_ID", batch)
        if asked is not None:
            return [check_token_id(value, self._vocabulary_size, "end_id") for value in asked], ()
        first = self._end_ids[0] if self._end_ids else -1
        return [first] * batch, tuple((end_id,) for end_id in self._end_ids[1:])

    def _words(self, inputs: Mapping[str, Array], name: str, batch: int, shown: str, extra: WordIds) -> Array:
        rows = text_rows(inputs, name, batch, shown)
        lists = [word_ids(self._tokenizer.codec, row, shown) + extra for row in rows]
        return np.array(batch_of_two_rows(lists), dtype=np.int32).reshape(batch, 2, -1)

    def _bias(self, inputs: Mapping[str, Array], batch: int) -> Array:
        words = text_rows(inputs, "EMBEDDING_BIAS_WORDS", batch, "embedding_bias_words")
        weights = inputs.get("EMBEDDING_BIAS_WEIGHTS", np.zeros((batch, 0), dtype=np.float32))
        numbers = np.asarray(weights, dtype=np.float32).reshape(batch, -1).tolist()
        rows = [
            vocabulary_bias(self._tokenizer.codec, row, row_weights, self._vocabulary_size)
            for row, row_weights in zip(words, numbers, strict=True)
        ]
        if len({len(row) for row in rows}) > 1:
            rows = [row or [0.0] * self._vocabulary_size for row in rows]
        return np.array(rows, dtype=np.float32).reshape(batch, -1)
