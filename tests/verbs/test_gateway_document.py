"""The OpenAPI document says what is served: schemathesis finds nothing, and real answers fit it."""

import json
import re

import httpx2
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.fakes.running_gateway import MODEL, running_gateway
from tests.fakes.triton_entry.script import Pace
from tests.fakes.triton_entry.server import scripted_entry

from draftyard.rules.openai_document import document

KEY = "a-key-of-the-tests-0123"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    with (
        scripted_entry(pace=Pace(0, 0, 0)) as entry,
        running_gateway(entry.grpc_url, key_file=keys, most_tokens=40) as url,
    ):
        yield url


OPERATIONS = [
    *(("GET", path) for path in ("/v1/models", "/v1/models/{model}", "/health/live", "/health/ready", "/metrics")),
    *(("POST", path) for path in ("/v1/chat/completions", "/v1/completions")),
]


@pytest.fixture(scope="module")
def described(address):
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_operation_is_tried(described):
    found = {(one.ok().method.upper(), one.ok().path) for one in described.get_all_operations()}
    # Its own page is no operation to schemathesis.
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(
    ("mode", "method", "path"),
    [
        *((schemathesis.GenerationMode.POSITIVE, *one) for one in OPERATIONS),
        *((schemathesis.GenerationMode.NEGATIVE, *one) for one in OPERATIONS if one[0] == "POST"),
    ],
)
def test_schemathesis_finds_nothing(described, mode, method, path):
    operation = described[path][method]

    @settings(
        max_examples=40 if method == "POST" else 3,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case):
        case.headers["Authorization"] = f"Bearer {KEY}"
        case.call_and_validate()

    one()


def resolved(name):
    whole = document(MODEL, "1", False, 40)
    text = json.dumps({"$ref": f"#/$defs/{name}", "$defs": whole["components"]["schemas"]})
    return jsonschema_rs.validator_for(json.loads(text.replace("#/components/schemas/", "#/$defs/")))


def post(address, path, **fields):
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx2.post(f"{address}/v1/{path}", json={"model": MODEL, **fields}, headers=headers)


@pytest.mark.parametrize("usage", [True, False])
def test_every_chunk_of_a_stream_fits_its_schema(address, usage):
    options = {"stream": True, "stream_options": {"include_usage": usage}, "max_tokens": 9}
    chat = post(address, "chat/completions", messages=[{"role": "user", "content": "x"}], **options)
    completion = post(address, "completions", prompt="x", **options)
    for answer, name in ((chat, "ChatChunk"), (completion, "Completion")):
        data = re.findall(r"^data: (\{.*)$", answer.text, re.MULTILINE)
        assert len(data) > 3
        for one in data:
            resolved(name).validate(json.loads(one))


def test_a_chunk_that_does_not_fit_would_be_seen():
    with pytest.raises(jsonschema_rs.ValidationError):
        resolved("ChatChunk").validate({"id": "x"})
