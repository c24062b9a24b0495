"""A secret shows itself nowhere."""

import copy
import dataclasses
import json
import pickle

import pytest

from draftyard.nouns.secret import SHOWN, Secret


@dataclasses.dataclass(frozen=True)
class Holder:
    key: Secret


def test_every_way_to_print_it_gives_dots():
    secret = Secret("hush")
    holder = Holder(secret)
    for shown in (str(secret), repr(secret), f"{secret}", f"{secret!r}", repr(holder), repr([secret])):
        assert "hush" not in shown
        assert SHOWN in shown
    assert secret.reveal() == "hush"


def test_it_leaves_the_process_in_no_form():
    for leave in (pickle.dumps, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            leave(Secret("hush"))
