"""Engines of the tensorrt lane, made by a stand-in for the builder with every fault it can have."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.builder_host import host_environment, write_programs
from tests.fakes.engine_builds import LLAMA_1B, checkpoint
from tests.fakes.hollow_checkpoint import write_hollow_checkpoint

from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.builder import Builder, Runtime
from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.nouns.errors import Failure
from draftyard.nouns.gpu import Gpu
from draftyard.rules.build_request import build_parameters, read_build
from draftyard.verbs.build_devices import DevicePool, find_devices
from draftyard.verbs.compile_plans import FACTS_NAME, PlanMaker
from draftyard.verbs.making import Workplace

NETWORK = replace(LLAMA_1B, hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2, head_size=16)
BUILDER = Builder(Runtime.HOST, "trtllm-build", "builder-python", "", timeout_s=60)
BUILD = EngineBuild(
    checkpoint=checkpoint(replace(NETWORK, vocab_size=512), "fp16", 2),
    gpu=Gpu.H100_SXM,
    mode=BuildMode.DRAFT_TOKENS_EXTERNAL,
    max_batch_size=8,
    max_input_len=96,
    max_seq_len=128,
    max_num_tokens=256,
    max_draft_len=4,
    draft_depth=4,
)
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


class Workshop:
    """A store, a hollow checkpoint, and a host that looks as told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._environment = monkeypatch
        self._programs = write_programs(root / "bin")
        self._checkpoint = write_hollow_checkpoint(root / "checkpoint", BUILD.checkpoint)
        self.roots = StoreRoots(root / "out")
        self.said: list[tuple[float, str]] = []

    def make(self, faults: str = "", gpus: tuple[str, ...] = (H100,), builder: Builder = BUILDER, **changes: object):
        """Make the engine in the store; returns its directory and its receipt."""
        for name, value in host_environment(self._programs, gpus, faults).items():
            self._environment.setenv(name, value)
        build = replace(BUILD, **changes)
        toolchain = {"tensorrt_llm": "1.2.1"}
        step = Step(StepKind.ENGINE, "engine target", build_parameters(build), ("0" * 64,), toolchain)
        maker = PlanMaker(builder, DevicePool(find_devices()).borrow, self.roots.folder(StepKind.ENGINE) / "logs")
        store = Store(self.roots, {}, ())

        def fill(staging: Path) -> tuple[str, ...]:
            place = Workplace(
                staging, lambda key: self._checkpoint, (), lambda share, words: self.said.append((share, words))
            )
            return maker.make(step, place)

        receipt = store.ensure(step, fill, lambda words: None).receipt
        return store.path(StepKind.ENGINE, step.key), receipt


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    return Workshop(tmp_path, monkeypatch)


def test_an_engine_and_what_it_was_made_with(workshop):
    directory, receipt = workshop.make()
    assert {record.path for record in receipt.files} == {
        "build.json",
        "config.json",
        "rank0.engine",
        "rank1.engine",
        "timing.cache",
    }
    facts = (directory / FACTS_NAME).read_text()
    for words in ("GPU-00000000", H100, "580.95.05", "10.14.1.48", '"9.0"', "--speculative_decoding_mode"):
        assert words in facts
    assert any(note.startswith("$ env CUDA_VISIBLE_DEVICES=GPU-00000000 trtllm-build") for note in receipt.notes)
    shares = [share for share, _ in workshop.said]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_step_carries_the_whole_request():
    assert read_build(build_parameters(BUILD)) == BUILD


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong_mode", "speculative_decoding_mode is 1, asked 2"),
        ("drop_rank", "1 of 2 ranks were built: no rank1.engine"),
        ("truncate", "the plan is cut"),
        ("config_then_die", "0 of 2 ranks were built"),
        ("no_config", "no readable config.json"),
        ("killed", "signal 9, rank0.engine finished"),
        ("cuda_oom", "the GPU's memory is too small"),
        ("disk_full", "the disk is full"),
        ("override", "use_paged_context_fmha is False, asked True"),
        ("other_version", "built by TensorRT-LLM 1.1.0, pinned is 1.2.1"),
        ("fail", "Engine building failed"),
        ("unknown_option", "does not know an option"),
        ("harmless,killed", "signal 9"),
    ],
)
def test_every_fault_is_named_and_leaves_nothing(workshop, fault, words):
    with pytest.raises(Failure, match=words) as caught:
        workshop.make(fault)
    assert (caught.value.code, "log:" in caught.value.hint) == (1, True)
    engines = workshop.roots.folder(StepKind.ENGINE)
    assert [path.name for path in engines.iterdir() if not path.name.startswith(".")] == ["logs"]
    assert len(list((engines / "logs").iterdir())) == 1
    workshop.make()


def test_a_hanging_builder_is_ended(workshop):
    with pytest.raises(Failure, match="did not end within its time limit"):
        workshop.make("hang", builder=replace(BUILDER, timeout_s=1.5))


def test_a_slow_builder_is_waited_for(workshop):
    workshop.make("slow")
    assert any("layer 1" in words for _, words in workshop.said)


@pytest.mark.parametrize(
    ("changes", "gpus", "code", "words"),
    [
        ({}, (H200,), 3, "this host has no h100_sxm"),
        ({}, (), 3, "this host has no h100_sxm"),
        ({"overrides": (("streamingllm", "enable"),)}, (H100,), 2, "StreamingLLM"),
        ({"max_draft_len": 0}, (H100,), 2, "without drafted tokens"),
    ],
)
def test_nothing_starts_that_could_not_end_well(workshop, changes, gpus, code, words):
    with pytest.raises(Failure, match=words) as caught:
        workshop.make(gpus=gpus, **changes)
    assert caught.value.code == code
    assert not (workshop.roots.folder(StepKind.ENGINE) / "logs").exists()


def test_another_version_is_refused_before_the_build(workshop, tmp_path):
    python = tmp_path / "bin" / "builder-python"
    python.write_text('#!/bin/sh\necho \'{"tensorrt_llm": "1.3.0"}\'\n')
    with pytest.raises(Failure, match=r"TensorRT-LLM 1\.3\.0 is installed, pinned is 1\.2\.1") as caught:
        workshop.make()
    assert caught.value.code == 3


def test_a_full_disk_is_seen_before_the_build(workshop, monkeypatch):
    monkeypatch.setattr("draftyard.verbs.compile_plans.free_bytes", lambda path: 1000)
    with pytest.raises(Failure, match="1000 are free") as caught:
        workshop.make()
    assert caught.value.code == 3
