from hypothesis import given
from hypothesis import strategies as st
from stop_words import StopWordMatcher

WORDS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)
CHUNKS = st.lists(st.text(alphabet="ab\nc", max_size=4), max_size=12)


def shown(words, chunks):
    matcher, pieces = StopWordMatcher(words), []
    for chunk in chunks:
        matched = matcher.feed(chunk)
        pieces.append(matched.text)
        if matched.stopped:
            return pieces, True
    pieces.append(matcher.flush())
    return pieces, False


@given(WORDS, CHUNKS)
def test_shows_what_lies_before_the_first_word_that_completes(words, chunks):
    pieces, stopped = shown(words, chunks)
    text = "".join(chunks)
    assert stopped == any(word in text for word in words)
    assert text.startswith("".join(pieces))
    assert not any(word in "".join(pieces) for word in words)
    if not stopped:
        assert "".join(pieces) == text


@given(WORDS, CHUNKS)
def test_feeding_by_characters_gives_the_text_before_the_first_complete_word(words, chunks):
    text = "".join(chunks)
    pieces, stopped = shown(words, list(text))
    ends = [(text.find(word) + len(word), text.find(word)) for word in words if word in text]
    expected = text[: min(start for end, start in ends if end == min(ends)[0])] if ends else text
    assert ("".join(pieces), stopped) == (expected, bool(ends))


def test_a_word_over_three_chunks_never_leaks():
    assert shown(["STOP"], ["go S", "TO", "P on"]) == (["go ", "", ""], True)


def test_a_false_start_comes_out_later():
    assert shown(["STOP"], ["ST", "ART"]) == (["", "START", ""], False)


def test_without_words_text_passes_at_once():
    assert StopWordMatcher(["", ""]).feed("abc").text == "abc"
