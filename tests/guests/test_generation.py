import pytest
from detokeniser import IncrementalDetokeniser
from generation import CANCELLED, END_ID, LENGTH, STOP_WORDS, EndedEarly, EndRules, Generation
from hypothesis import given, settings
from hypothesis import strategies as st
from stop_words import StopWordMatcher
from tests.guests.tokenizers_made import byte_level

TOKENIZER = byte_level()
END = TOKENIZER.token_to_id("<|im_end|>")


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def generation(max_tokens=64, stop_words=(), stop_sequences=(), end_ids=(END,), silent_end=False):
    rules = EndRules(max_tokens, frozenset(end_ids), tuple(stop_sequences), silent_end)
    return Generation(rules, IncrementalDetokeniser(TOKENIZER.decode), StopWordMatcher(stop_words))


def run(subject, ids, sizes):
    text, kept, start, index = "", [], 0, 0
    while start < len(ids):
        size = sizes[index % len(sizes)]
        delta = subject.add(ids[start : start + size])
        text, kept = text + delta.text, kept + list(delta.token_ids)
        start, index = start + size, index + 1
        if delta.finish:
            return text, kept, delta.finish
    return text, kept, ""


def test_length_ends_in_the_middle_of_a_step():
    subject = generation(max_tokens=3)
    delta = subject.add([10, 11, 12, 13])
    assert (delta.token_ids, delta.finish, subject.token_count) == ((10, 11, 12), LENGTH, 3)


def test_end_id_drops_what_follows_and_shows_no_text():
    delta = generation().add([*encode("ab"), END, *encode("cd")])
    assert (delta.text, delta.token_ids[-1], delta.finish) == ("ab", END, END_ID)


def test_before_the_least_number_of_tokens_no_end_counts():
    rules = EndRules(9, frozenset([END]), ((7,),), False, min_tokens=3)
    subject = Generation(rules, IncrementalDetokeniser(TOKENIZER.decode), StopWordMatcher(()))
    assert subject.add([7, END]).finish == ""
    assert subject.add([7]).finish == STOP_WORDS


def test_a_stop_sequence_without_text_counts_by_its_ids():
    pad = TOKENIZER.token_to_id("<pad>")
    subject = generation(stop_sequences=[(pad, pad)])
    assert subject.add([*encode("ab"), pad]).finish == ""
    delta = subject.add([pad, 5])
    assert (delta.token_ids, delta.finish) == ((pad,), STOP_WORDS)


def test_a_stop_word_across_steps_is_never_shown():
    ids = encode("one two STOP three")
    for size in (1, 2, 3, 5, 50):
        text, kept, finish = run(generation(stop_words=["STOP"]), ids, [size])
        assert (text, finish) == ("one two ", STOP_WORDS)
        assert TOKENIZER.decode(kept).startswith("one two STOP")


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="ab STOP ż🙂", max_size=40), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_the_size_of_the_steps_changes_nothing(text, sizes):
    ids = [*encode(text), END]
    words = ["TO", "b S", "🙂ż"]
    assert run(generation(200, words), ids, sizes) == run(generation(200, words), ids, [1])


def test_an_unfinished_character_comes_with_the_last_step():
    ids = [TOKENIZER.token_to_id(letter) for letter in "âĤ"]
    subject = generation(max_tokens=2)
    assert subject.add(ids[:1]).text == ""
    assert subject.add(ids[1:]).text == "�"


def test_an_end_that_no_token_shows_is_an_error():
    subject = generation()
    subject.add(encode("Hi!"))
    with pytest.raises(EndedEarly, match="ended early after 3 of 64 tokens"):
        subject.end()
    with pytest.raises(EndedEarly, match="after 0 of 64"):
        generation(silent_end=True).end()


def test_an_engine_may_leave_the_end_id_out_where_that_is_said():
    subject = generation(silent_end=True)
    subject.add(encode("ab"))
    assert subject.end().finish == END_ID
    empty_step = generation()
    empty_step.add(encode("ab"))
    empty_step.add([])
    assert empty_step.end().finish == END_ID


def test_without_end_ids_there_is_no_silent_end():
    subject = generation(end_ids=(), silent_end=True)
    subject.add(encode("ab"))
    with pytest.raises(EndedEarly):
        subject.end()


def test_cancelling_gives_what_was_held_back():
    subject = generation(stop_words=["STOP"])
    subject.add(encode("a ST"))
    assert subject.cancel().finish == CANCELLED
