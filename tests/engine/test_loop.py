"""The engine's thread: callers from many threads, faults, no waiting for ever."""

import threading
import time
from pathlib import Path

import pytest
from tests.engine.tiny_engines import NGRAM, loaded, random_llama, run, tokens_of, write_engine

from draftyard.engine.loop import EngineLoop
from draftyard.engine.reference import ReferenceEngine
from draftyard.nouns.generation import FinishReason, GenerationEvent, GenerationRequest


class Inbox:
    """Collects events and lets a test wait for the last ones of given requests."""

    def __init__(self) -> None:
        self.events: dict[str, list[GenerationEvent]] = {}
        self._changed = threading.Condition()

    def deliver(self, event: GenerationEvent) -> None:
        with self._changed:
            self.events.setdefault(event.request_id, []).append(event)
            self._changed.notify_all()

    def wait_for_ends(self, names: set[str], timeout_s: float = 20.0) -> None:
        def ended() -> bool:
            return all(self.events.get(name) and self.events[name][-1].finish_reason for name in names)

        with self._changed:
            assert self._changed.wait_for(ended, timeout_s), f"no end within {timeout_s} s: {self.events}"

    def wait_for_any(self, name: str, timeout_s: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.events, timeout_s)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_engine(tmp_path_factory.mktemp("loop") / "engine", random_llama(), speculator=NGRAM)


@pytest.fixture
def engine(directory: Path) -> ReferenceEngine:
    return loaded(directory)


def ask(name: str, max_tokens: int = 20) -> GenerationRequest:
    return GenerationRequest(name, (5, 6, 7, 5, 6), max_tokens)


def test_many_threads_submit_and_every_request_gets_its_text(engine: ReferenceEngine, directory: Path) -> None:
    expected = tokens_of(run(loaded(directory), [ask("x")])["x"])
    inbox = Inbox()
    loop = EngineLoop(engine, inbox.deliver)
    loop.start()

    def submit(thread: int) -> None:
        for number in range(5):
            loop.submit(ask(f"{thread}-{number}"))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    names = {f"{thread}-{number}" for thread in range(6) for number in range(5)}
    inbox.wait_for_ends(names)
    loop.stop()
    assert all(tokens_of(inbox.events[name]) == expected for name in names)


def test_cancelling_ends_a_request_and_frees_its_place(engine: ReferenceEngine) -> None:
    inbox = Inbox()
    loop = EngineLoop(engine, inbox.deliver)
    loop.start()
    loop.submit(ask("long", 390))
    inbox.wait_for_any("long")
    loop.cancel("long")
    loop.cancel("unknown")
    inbox.wait_for_ends({"long"})
    loop.submit(ask("next"))
    inbox.wait_for_ends({"next"})
    loop.stop()
    assert inbox.events["long"][-1].finish_reason is FinishReason.CANCELLED
    assert inbox.events["next"][-1].finish_reason is FinishReason.LENGTH
    assert engine.status().active == 0


def test_a_broken_pass_ends_its_requests_with_an_error_and_the_engine_goes_on(engine: ReferenceEngine) -> None:
    inbox, forward, broken = Inbox(), engine._decoder.forward, threading.Event()

    def sometimes(runs: list[object]) -> object:
        if broken.is_set():
            broken.clear()
            raise MemoryError("planted")
        return forward(runs)

    engine._decoder.forward = sometimes
    broken.set()
    loop = EngineLoop(engine, inbox.deliver)
    loop.start()
    loop.submit(ask("victim"))
    inbox.wait_for_ends({"victim"})
    loop.submit(ask("survivor"))
    inbox.wait_for_ends({"survivor"})
    loop.stop()
    end = inbox.events["victim"][-1]
    assert end.finish_reason is FinishReason.ERROR
    assert "planted" in end.error
    assert inbox.events["survivor"][-1].finish_reason is FinishReason.LENGTH


def test_a_sequence_that_ended_in_a_pass_that_broke_later_still_hears_of_it(engine: ReferenceEngine) -> None:
    """Two sequences share a pass: the first one ends with it, the second one's verification breaks."""
    inbox, advance = Inbox(), engine._advance

    def planted(one: object, logits: object) -> object:
        if one.sequence.request.request_id == "breaks" and not one.sequence.prefilling:
            raise RuntimeError("planted")
        return advance(one, logits)

    engine._advance = planted
    loop = EngineLoop(engine, inbox.deliver)
    loop.submit(ask("ends", 2))
    loop.submit(ask("breaks", 9))
    loop.start()
    inbox.wait_for_ends({"ends", "breaks"})
    loop.stop()
    assert inbox.events["ends"][-1].finish_reason is FinishReason.LENGTH
    assert inbox.events["breaks"][-1].finish_reason is FinishReason.ERROR


def test_a_refused_request_hears_why(engine: ReferenceEngine) -> None:
    inbox = Inbox()
    loop = EngineLoop(engine, inbox.deliver)
    loop.start()
    loop.submit(GenerationRequest("bad", (), 3))
    inbox.wait_for_ends({"bad"})
    loop.stop()
    assert "empty" in inbox.events["bad"][-1].error


def test_a_receiver_that_raises_does_not_stop_the_others(engine: ReferenceEngine) -> None:
    inbox = Inbox()

    def deliver(event: GenerationEvent) -> None:
        if event.request_id == "raises":
            raise ValueError("planted")
        inbox.deliver(event)

    loop = EngineLoop(engine, deliver)
    loop.start()
    loop.submit(ask("raises"))
    loop.submit(ask("other"))
    inbox.wait_for_ends({"other"})
    loop.stop()


def test_an_idle_loop_uses_no_processor_and_stops_at_once(engine: ReferenceEngine) -> None:
    loop = EngineLoop(engine, lambda event: None)
    loop.start()
    before = time.process_time()
    threading.Event().wait(0.3)
    assert time.process_time() - before < 0.2
    started = time.monotonic()
    loop.stop()
    assert time.monotonic() - started < 2.0
