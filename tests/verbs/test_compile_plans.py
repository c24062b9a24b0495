"""Engines of the tensorrt lane, made by a stand-in for the builder with every fault it can have."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.builder_host import host_environment, write_programs
from tests.fakes.engine_builds import LLAMA_1B, checkpoint
from tests.fakes.hollow_checkpoint import write_hollow_checkpoint

from draftyard.doors.config_files import read_config
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.builder import Builder, Runtime
from draftyard.nouns.engine_build import BuildMode, EngineBuild
from draftyard.nouns.errors import Failure
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.recipe import DraftTargetSpeculator, Limits, Serving
from draftyard.nouns.repository import RepositoryPlan
from draftyard.rules.build_argv import build_options
from draftyard.rules.build_request import build_parameters, draw_build, read_build
from draftyard.rules.triton_engine import engine_problems
from draftyard.rules.triton_repository import repository_parameters
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


def test_a_plan_is_made_on_the_capability_of_its_product(workshop, monkeypatch):
    """Plans are bound to it, and the GPU of the build was not the one assumed (NVIDIA/TensorRT-LLM#222, #3031)."""
    monkeypatch.setenv("FAKE_COMPUTE", "8.9")
    with pytest.raises(Failure, match=r"has compute capability 8\.9, h100_sxm has 9\.0") as caught:
        workshop.make()
    assert caught.value.code == 3


def test_plans_that_went_missing_or_were_changed_are_found(workshop):
    """A directory with its config alone looks finished (modal-labs/modal-examples#747, NVIDIA/TensorRT-LLM#1038)."""
    directory, receipt = workshop.make()
    plan = RepositoryPlan.model_validate(
        repository_parameters(
            lane=Lane.TENSORRT,
            limits=Limits(max_batch_size=8, max_input_len=96, max_seq_len=128),
            serving=Serving(),
            speculator=DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="d", max_draft_len=4),
            kv_cache_tokens=1024,
            end_ids=(2,),
            vocab_size=512,
            logits_dtype="float32",
            guests_digest="0" * 64,
            ranks=2,
        )["plan"]
    )
    config, files = read_config(directory / "config.json"), [record.path for record in receipt.files]
    assert engine_problems(plan, config, files) == ()
    (problem,) = engine_problems(plan, config, [name for name in files if name != "rank1.engine"])
    assert "no rank1.engine" in problem.message and "the log of its build" in problem.hint
    with (directory / "rank1.engine").open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    store = Store(workshop.roots, {}, ())
    step = Step(StepKind.ENGINE, "engine target", build_parameters(BUILD), ("0" * 64,), {"tensorrt_llm": "1.2.1"})
    (found,) = store.check(step)
    assert "rank1.engine changed since it was built" in found.message


def test_input_and_output_make_the_total_that_the_builder_is_given():
    """An option for the output alone is gone, and the total in its place halves the room (TensorRT-LLM#2057, #1780)."""
    limits = Limits(max_input_len=2048, max_seq_len=4096, max_num_tokens=4096)
    draft = DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="d", max_draft_len=4)
    options = build_options(draw_build(BUILD.checkpoint, Gpu.H100_SXM, limits, draft, {}))
    given = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
    assert [options[name] for name in given] == ["8", "2048", "4096", "4096"]
    assert "max_output_len" not in options
