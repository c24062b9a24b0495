"""The page about trtllm-build says what the code says."""

from tests.house.build_options_reference import PAGE, page


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf-8") == page(), "rewrite it: see the head of docs/trtllm-build.md"
