import json

import numpy as np
import pytest
from bad_input import BadInput
from chat import ChatRenderer
from hypothesis import given
from hypothesis import strategies as st
from prompts import Limits, check_lengths, check_token_id, padded, prompt_ids, readable
from sequences import valid_ids
from tests.guests.tokenizers_made import TEMPLATE, byte_level, write_directory
from tokenizer_files import read_tokenizer
from word_lists import batch_of_two_rows, two_rows, vocabulary_bias, word_ids
from word_rows import word_rows

TOKENIZER = byte_level(adds_bos=True)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    write_directory(TOKENIZER, directory)
    return read_tokenizer(directory)


def test_bos_is_added_once(bundle):
    bos = bundle.bos.id
    plain = prompt_ids(bundle.codec, "hello", bundle.bos, True)
    brought = prompt_ids(bundle.codec, "<|endoftext|>hello", bundle.bos, True)
    assert plain == brought
    assert plain.count(bos) == 1
    assert bos not in prompt_ids(bundle.codec, "hello", bundle.bos, False)


@pytest.mark.parametrize(
    ("raw", "words"), [(b"a\xc3", "not UTF-8: byte 1 is 0xC3"), (b"ab\0c", "NUL character at position 2")]
)
def test_unreadable_bytes_are_named(raw, words):
    with pytest.raises(BadInput, match=words):
        readable(raw, "text_input")


def test_empty_prompt_is_refused(bundle):
    with pytest.raises(BadInput, match="empty"):
        prompt_ids(bundle.codec, "", bundle.bos, True)


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [
        (5, 0, "at least 1 token"),
        (5, -3, "max_tokens is -3"),
        (11, 1, "has 11 tokens, the engine takes 10"),
        (10, 11, "ask for at most 10"),
    ],
)
def test_lengths_are_refused_with_the_limit(prompt, output, words):
    with pytest.raises(BadInput, match=words):
        check_lengths(prompt, output, Limits(10, 20))


def test_lengths_at_the_limit_pass():
    check_lengths(10, 10, Limits(10, 20))
    check_lengths(10**6, 10**6, Limits(None, None))


def test_token_ids_are_bounded():
    assert check_token_id(-1, 10, "end_id") == -1
    with pytest.raises(BadInput, match="end_id is 10: token ids run from 0 to 9"):
        check_token_id(10, 10, "end_id")


def test_word_rows_hold_words_of_several_tokens_and_commas(bundle):
    words = word_ids(bundle.codec, ["[END]", "a,b", "\n\n"], "stop_words")
    flat, ends = two_rows(words)
    assert len(flat) == len(ends) == sum(len(word) for word in words)
    assert ends[:3] == [len(words[0]), len(words[0]) + len(words[1]), len(flat)]
    assert set(ends[3:]) <= {-1}
    assert [bundle.codec.decode(list(word)) for word in words] == ["[END]", "a,b", "\n\n"]


def test_no_words_make_two_empty_rows():
    assert two_rows(()) == ([], [])
    assert np.array(batch_of_two_rows([()]), dtype=np.int32).reshape(1, 2, -1).shape == (1, 2, 0)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple), max_size=5).map(tuple))
def test_rows_are_read_back_as_written(words):
    rows = np.array(batch_of_two_rows([words]), dtype=np.int32).reshape(1, 2, -1)
    assert word_rows(rows) == words


def test_batches_are_padded_to_the_longest():
    assert padded([(1, 2), (3,)], 9) == [[1, 2], [3, 9]]
    rows = batch_of_two_rows([((1, 2), (3,)), ((4,),)])
    assert rows == [[[1, 2, 3], [2, 3, -1]], [[4, 0, 0], [1, -1, -1]]]


def test_bias_needs_a_weight_a_word(bundle):
    with pytest.raises(BadInput, match="1 entries"):
        vocabulary_bias(bundle.codec, ["a"], [], 10)
    token_id = bundle.codec.token_to_id("a")
    bias = vocabulary_bias(bundle.codec, ["a"], [2.5], bundle.codec.get_vocab_size())
    assert bias[token_id] == 2.5
    assert sum(bias) == 2.5


def test_chat_is_rendered_with_the_models_template():
    text = ChatRenderer(TEMPLATE, {}).render(json.dumps([{"role": "user", "content": "Hi"}]))
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("text", ["hello", "{}", "[]", '[{"role": 3, "content": "x"}]', '[{"role": "user"}]'])
def test_what_is_no_message_list_is_refused(text):
    with pytest.raises(BadInput):
        ChatRenderer(TEMPLATE, {}).render(text)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
    ],
)
def test_a_template_cannot_break_out_and_its_refusal_is_the_clients(template):
    with pytest.raises(BadInput, match="chat template refuses"):
        ChatRenderer(template, {}).render('[{"role": "user", "content": "x"}]')


def test_template_globals_that_published_templates_use():
    template = "{{ messages | tojson }}|{{ strftime_now('%Y') | length }}|{{ bos_token }}"
    text = ChatRenderer(template, {"bos_token": "<s>"}).render('[{"role": "user", "content": "<é>"}]')
    assert text == '[{"role": "user", "content": "<é>"}]|4|<s>'


def test_sequences_are_cut_batch_first():
    tokens = np.array([[[1, 2, 0], [3, 0, 0]], [[4, 5, 6], [7, 8, 0]]])
    assert valid_ids(tokens, np.array([[2, 1], [3, 0]])) == ((1, 2), (3,), (4, 5, 6), ())
    with pytest.raises(BadInput, match="does not fit"):
        valid_ids(tokens, np.array([[4, 1], [3, 0]]))
