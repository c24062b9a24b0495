"""The gateway in front of a real server with a real engine of a tiny model, started by one command."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx2 as httpx
import openai
import pytest
from tests.fakes.tiny_model import write_tokenizer
from tests.fakes.triton_repository import SPECULATORS, repository_step, workplace, write_engine
from tests.guests.rig import Client, complete, metric, value, wait_until
from tests.house.source_map import ROOT
from tokenizers import Tokenizer

from draftyard.verbs.package import make_repository

pytestmark = [pytest.mark.server, pytest.mark.slow]
MODEL = "tiny"
PROMPT = "a b a b a b a b"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    root = tmp_path_factory.mktemp("packaged")
    model = write_engine(root, SPECULATORS["ngram"])
    write_tokenizer(model, adds_bos=True)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(model / "tokenizer.json"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ bos_token }} {{ messages[-1]['content'] }}"
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    make_repository(repository_step(model, SPECULATORS["ngram"]), workplace(root, "repository", model))
    words = ("serve", str(root / "repository"), "--openai", "--openai-port", "0", "--served-model-name", MODEL)
    argv = [sys.executable, "-m", "draftyard", *words, "--log", str(root / "log"), "--max-tokens", "60"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build")}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield dict(process.stdout.readline().split() for _ in range(6))
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "stopped\n")


@pytest.fixture
def client(addresses):
    with openai.OpenAI(base_url=addresses["openai"], api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.parametrize("prompt", [PROMPT, "hello hello hello", "x"])
def test_the_gateway_changes_no_character(addresses, client, prompt):
    direct = complete(addresses["grpc"], text_input=prompt, max_tokens=value(20), end_id=value(-1))
    wishes = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**wishes)
    stream = client.completions.create(**wishes, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert whole.choices[0].text == text == direct.text
    assert whole.usage == chunks[-1].usage
    assert whole.usage.completion_tokens == 20
    found = whole.model_dump()["metrics"]["speculative_decoding"]
    assert found["num_draft_tokens"] == direct.last["total_draft_tokens"].item()
    assert found["num_accepted_draft_tokens"] == direct.last["total_accepted_draft_tokens"].item()
    # The prefill's token, and of each step what it accepted and one more; the last may be cut before that.
    assert 0 <= 1 + found["num_spec_steps"] + found["num_accepted_draft_tokens"] - 20 <= 1
    plain = client.completions.create(**{**wishes, "extra_body": {"ignore_eos": True, "num_draft_tokens": 0}})
    assert plain.choices[0].text == text
    assert "metrics" not in plain.model_dump()


def test_sampling_follows_its_seed(client):
    def one(seed):
        wishes = {"max_tokens": 24, "seed": seed, "extra_body": {"ignore_eos": True}}
        return client.completions.create(model=MODEL, prompt="x", **wishes).choices[0].text

    assert one(5) == one(5)
    assert len({one(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "a b " * 100, "max_tokens": 4}, "the engine takes 32"),
        ({"prompt": "a b " * 10, "max_tokens": 60}, "exceed the engine's 64"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_the_engine_cannot_hold_is_a_bad_request(client, fields, words, stream):
    with pytest.raises(openai.BadRequestError, match=re.escape(words)):
        client.completions.create(model=MODEL, **fields, stream=stream)


def test_a_chat_has_one_beginning_token(client):
    """The template brings one, the tokenizer would add another: both ways end in the same prompt."""
    wishes = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "a w5 a"}], **wishes)
    plain = client.completions.create(prompt="a w5 a", **wishes)
    assert chat.usage.prompt_tokens == plain.usage.prompt_tokens == 4
    assert chat.choices[0].message.content == plain.choices[0].text


def test_a_client_that_goes_away_frees_the_engine(addresses):
    flying = "draftyard_requests_in_flight"
    metrics = addresses["metrics"].removeprefix("http://").removesuffix("/metrics")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 60, "stream": True, "ignore_eos": True, "num_draft_tokens": 0}
    for _ in range(5):
        with httpx.stream("POST", f"{addresses['openai']}/completions", json=body) as answer:
            next(answer.iter_lines())
    wait_until(lambda: metric(metrics, flying) == 0, 10)
    held = Client(addresses["grpc"])
    held.ask("a", text_input="x", max_tokens=value(2))
    assert held.read("a").error == ""
    held.close()


def test_ready_and_counted(addresses):
    root = addresses["openai"].removesuffix("/v1")
    assert httpx.get(f"{root}/health/ready").status_code == 200
    assert "draftyard_gateway_requests_in_flight 0" in httpx.get(f"{root}/metrics").text
