"""Predicted beside measured: what both have is compared, and a value outside the interval is a surprise."""

import pytest

from draftyard.nouns.prediction import Comparison, Estimate


@pytest.mark.parametrize(("measured", "surprise"), [(9.0, False), (12.0, False), (8.9, True), (12.1, True)])
def test_outside_the_interval_is_a_surprise(measured: float, surprise: bool) -> None:
    one = Comparison("variant", 4, "TPOT ms", Estimate(10.0, 9.0, 12.0), measured)
    assert one.surprise is surprise
    assert one.error == pytest.approx(10.0 / measured - 1)
