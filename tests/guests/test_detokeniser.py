from detokeniser import REPLACEMENT, IncrementalDetokeniser
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guests.tokenizers_made import byte_level, metaspace, sentencepiece_like

BYTES = byte_level()
PIECES = sentencepiece_like()
SPACES = metaspace()
FALLBACK = frozenset(PIECES.token_to_id(f"<0x{value:02X}>") for value in range(256))
KINDS = {"bytes": (BYTES, frozenset()), "pieces": (PIECES, FALLBACK), "spaces": (SPACES, frozenset())}
TEXTS = st.text(alphabet="ab ż🙂你\n.é ", max_size=30)


def specials(tokenizer):
    return frozenset(key for key, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def chunked(kind, ids, cuts):
    tokenizer, fallback = KINDS[kind]
    stream = IncrementalDetokeniser(
        lambda run: tokenizer.decode(run, skip_special_tokens=True), fallback, specials(tokenizer)
    )
    chunks, start = [], 0
    for length in cuts:
        chunks.append(stream.add(ids[start : start + length]))
        start += length
    chunks.append(stream.add(ids[start:]))
    return chunks, stream.flush()


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), data=st.data(), cuts=st.lists(st.integers(0, 4), max_size=60))
def test_chunks_of_random_ids_add_up_to_the_whole(kind, data, cuts):
    tokenizer = KINDS[kind][0]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=80))
    chunks, rest = chunked(kind, ids, cuts)
    assert "".join(chunks) + rest == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(["bytes", "pieces"]), text=TEXTS, cuts=st.lists(st.integers(0, 3), max_size=60))
def test_text_never_shows_a_broken_character(kind, text, cuts):
    tokenizer = KINDS[kind][0]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    chunks, rest = chunked(kind, ids, cuts)
    assert REPLACEMENT not in "".join(chunks) + rest
    assert "".join(chunks) + rest == tokenizer.decode(ids)


def test_an_emoji_comes_with_its_last_byte():
    ids = [BYTES.token_to_id(letter) for letter in "ðŁĺĢ"]  # the four bytes of U+1F600 in the byte alphabet
    chunks, rest = chunked("bytes", ids, [1, 1, 1, 1])
    assert chunks[:4] == ["", "", "", "\U0001f600"]
    assert rest == ""


def test_a_sequence_that_never_completes_is_flushed_once():
    ids = [BYTES.token_to_id(letter) for letter in "âĤ"]
    chunks, rest = chunked("bytes", ids, [1, 1])
    assert "".join(chunks) == ""
    assert rest == BYTES.decode(ids) == REPLACEMENT


def test_invalid_byte_followed_by_ascii_shows_the_replacement_at_once():
    ids = [BYTES.token_to_id(letter) for letter in "â("]
    chunks, _ = chunked("bytes", ids, [1, 1])
    assert chunks[:2] == ["", REPLACEMENT + "("]


def test_interleaved_sequences_do_not_mix():
    first, second = BYTES.encode("żółw 🙂").ids, BYTES.encode("你好 ok").ids
    one, two = IncrementalDetokeniser(BYTES.decode), IncrementalDetokeniser(BYTES.decode)
    texts = ["", ""]
    for index in range(max(len(first), len(second))):
        texts[0] += one.add(first[index : index + 1])
        texts[1] += two.add(second[index : index + 1])
    assert [texts[0] + one.flush(), texts[1] + two.flush()] == ["żółw 🙂", "你好 ok"]


def test_a_special_token_does_not_cost_the_next_blank():
    ids = [PIECES.token_to_id("▁the"), PIECES.token_to_id("</s>"), PIECES.token_to_id("▁the")]
    chunks, rest = chunked("pieces", ids, [1, 1, 1])
    assert "".join(chunks) + rest == "the the"


def test_window_stays_short():
    decoded = []
    stream = IncrementalDetokeniser(lambda run: decoded.append(len(run)) or BYTES.decode(run))
    for token_id in BYTES.encode("hello world, how are you today? " * 40).ids:
        stream.add([token_id])
    assert max(decoded) < 8


def test_window_stays_short_when_bytes_never_form_a_character():
    decoded = []
    stream = IncrementalDetokeniser(lambda run: decoded.append(len(run)) or BYTES.decode(run))
    ids = [BYTES.token_to_id("ÿ")] * 500
    text = "".join(stream.add([token_id]) for token_id in ids) + stream.flush()
    assert text == REPLACEMENT * 500
    assert max(decoded) < 80
