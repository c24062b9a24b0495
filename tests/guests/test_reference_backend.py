"""A packaged repository with a real engine of a tiny model, in a real server."""

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
from tests.fakes.triton_repository import SPECULATORS, repository_step, workplace, write_engine
from tests.guests.rig import Client, complete, value, wait_until

from draftyard.doors.tensors import open_tensor_file
from draftyard.doors.triton import embedded_server
from draftyard.engine.loading import load_engine
from draftyard.nouns.generation import GenerationRequest
from draftyard.verbs.package import make_repository

pytestmark = [pytest.mark.server, pytest.mark.slow]
STREAM = np.bool_(True)
PROMPTS = ("a b a b a b a b", "hello hello hello", "x")


@pytest.fixture(scope="module", params=["ngram", "draft_target"])
def packaged(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("packaged")
    speculator = SPECULATORS[request.param]
    model = write_engine(root, speculator)
    make_repository(repository_step(model, speculator), workplace(root, "repository", model))
    return root / "repository"


@pytest.fixture(scope="module")
def server(packaged, tmp_path_factory):
    with embedded_server(packaged, log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


@pytest.fixture(scope="module")
def tokens_of(packaged):
    """The engine in this process, without a server and without speculation."""
    engine = load_engine(packaged / "engines" / "tensorrt_llm", open_tensor_file, threads=1)

    def run(input_ids, max_tokens):
        engine.submit(GenerationRequest("x", tuple(input_ids), max_tokens, max_draft_len=0))
        events = []
        while engine.has_work:
            events.extend(engine.step())
        return [token_id for event in events for token_id in event.token_ids]

    return run


def direct(server, values, request_id="direct", parameters=None):
    """A request to the engine's model itself; its responses as (ids, statistics) or the error."""
    client, found = Client(server.address.grpc_url), []
    client.ask(request_id, parameters, "tensorrt_llm", **values)
    for _, result, error in client.events(request_id):
        if error is not None:
            client.close()
            return str(error.message())
        if result.as_numpy("output_ids") is not None:
            found.append({o.name: result.as_numpy(o.name) for o in result.get_response().outputs})
    client.close()
    return found


def engine_inputs(ids, max_tokens, **more):
    return {
        "input_ids": np.array([ids], dtype=np.int32),
        "input_lengths": value(len(ids)),
        "request_output_len": value(max_tokens),
        **more,
    }


@pytest.mark.parametrize("prompt", PROMPTS)
def test_speculation_and_the_server_change_no_token(server, packaged, tokens_of, prompt):
    values = {"text_input": prompt, "max_tokens": value(20), "end_id": value(-1)}
    plain = complete(server.address.grpc_url, stream=STREAM, num_draft_tokens=value(0), **values)
    fast = complete(server.address.grpc_url, stream=STREAM, **values)
    whole = complete(server.address.grpc_url, **values)
    assert plain.error == fast.error == whole.error == ""
    assert plain.token_ids == fast.token_ids == whole.token_ids
    assert plain.text == fast.text == whole.text
    assert (plain.last["total_draft_tokens"].item(), len(plain.texts)) == (0, 20)
    accepted = fast.last["total_accepted_draft_tokens"].item()
    assert len(fast.texts) == 20 - accepted
    assert fast.last["total_draft_tokens"].item() >= accepted
    assert len(whole.texts) == 1
    assert tokens_of(_prompt_ids(packaged, prompt), 20) == plain.token_ids


def _prompt_ids(packaged, prompt):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(packaged / "tokenizer" / "tokenizer.json")).encode(prompt).ids


def test_more_clients_than_slots_are_all_served(server):
    client = Client(server.address.grpc_url)
    names = [f"c{index}" for index in range(8)]
    for name in names:
        client.ask(name, text_input=PROMPTS[0], max_tokens=value(12), stream=STREAM, end_id=value(-1))
    answers = [client.read(name) for name in names]
    client.close()
    assert len({tuple(answer.token_ids) for answer in answers}) == 1
    assert {answer.finish_reason for answer in answers} == {"length"}


def test_the_engine_answers_directly_in_one_piece_or_in_steps(server, tokens_of):
    ids = [5, 6, 7]
    steps = direct(server, engine_inputs(ids, 6, streaming=STREAM, return_perf_metrics=STREAM))
    assert [token for step in steps for token in step["output_ids"].reshape(-1)] == tokens_of(ids, 6)
    assert steps[-1]["num_output_tokens"].item() == 6
    assert steps[-1]["total_draft_tokens"].item() >= steps[-1]["total_accepted_draft_tokens"].item()
    assert steps[-1]["arrival_time_ns"] <= steps[-1]["first_token_time_ns"] <= steps[-1]["last_token_time_ns"]
    (whole,) = direct(server, engine_inputs(ids, 6, exclude_input_in_output=np.bool_(False)))
    assert whole["output_ids"].reshape(-1).tolist() == [*ids, *tokens_of(ids, 6)]
    assert whole["sequence_length"].item() == 9


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (engine_inputs([5], 4, beam_width=value(2)), "beam_width is served with 1 alone"),
        (engine_inputs([5], 1000), "1000"),
        (engine_inputs([5] * 40, 4), "40"),
        (engine_inputs([10**6], 4), "1000000"),
        (engine_inputs([5], 4, stop=STREAM), "needs the id"),
    ],
)
def test_the_engine_refuses_clearly_and_lives_on(server, values, words):
    assert words in direct(server, values, request_id="" if "stop" in values else "direct")
    assert len(direct(server, engine_inputs([5], 2))) == 1


def _counts_with_the_last_stopped(server):
    """Six requests for two slots, and a stop for the last one: output tokens of each, the last one's behind."""
    client, names = Client(server.address.grpc_url), [f"s{index}" for index in range(6)]
    for name in names:
        client.ask(name, {"num_draft_tokens": 0}, "tensorrt_llm", **engine_inputs([5, 6], 60, streaming=STREAM))
    client.stop(names[-1], engine_inputs([5], 1, stop=STREAM))
    counts = []
    for name in names:
        results = [result.as_numpy("output_ids") for _, result, _ in client.events(name)]
        counts.append(sum(ids.size for ids in results if ids is not None))
    client.close()
    return counts


def test_a_stop_request_ends_its_request_alone(server):
    # On a busy machine the tiny engine may have answered all six before the stop arrives: no fault, but no proof.
    for _ in range(10):
        *others, stopped = _counts_with_the_last_stopped(server)
        assert set(others) == {60}
        if stopped < 60:
            return
    pytest.fail("no stop request ended its request early")


def test_a_full_queue_is_said(server):
    clients = [Client(server.address.grpc_url) for _ in range(40)]
    for client in clients:
        client.ask("q", text_input="x", max_tokens=value(40), stream=STREAM, end_id=value(-1))
    answers = [client.read("q") for client in clients]
    for client in clients:
        client.close()
    refused = [answer.error for answer in answers if answer.error]
    assert 0 < len(refused) < len(clients)
    words = ("queue is full", "try again later", "Exceeds maximum queue size")
    assert all(any(word in error for word in words) for error in refused)
    assert {answer.finish_reason for answer in answers if not answer.error} == {"length"}


def test_a_client_that_goes_frees_its_slot(server):
    client = Client(server.address.grpc_url)
    for index in range(2):
        client.ask(f"g{index}", text_input="x", max_tokens=value(60), stream=STREAM, end_id=value(-1))
    client.close(cancel=True)
    begin = wait_until(lambda: complete(server.address.grpc_url, text_input="x", max_tokens=value(1)).error == "", 5)
    assert begin < 2


def test_a_client_library_sees_the_server_as_ready(server):
    client = grpc_client.InferenceServerClient(server.address.grpc_url)
    assert all(client.is_model_ready(name) for name in ("ensemble", "tensorrt_llm", "tensorrt_llm_bls"))
    client.close()
