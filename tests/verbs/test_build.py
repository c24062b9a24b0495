"""The whole way from a recipe to repositories, and what happens to it when it is killed, doubled or changed."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fakes.tiny_recipe import write_recipe

from draftyard.doors.locks import exclusive
from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.errors import Failure
from draftyard.nouns.policy import Policy
from draftyard.rules.capability import capability_problems
from draftyard.rules.explain import StepState
from draftyard.verbs.build import build, check
from draftyard.verbs.build_choices import ENGINES, BuildOptions
from draftyard.verbs.drawing import draw_recipe, read_recipe
from draftyard.verbs.plan import plan
from draftyard.verbs.prove import ProveOptions, prove
from draftyard.verbs.repositories import packaged, repository_to_serve

PACKAGE = Path(__file__).parents[2] / "build"
STEPS = 8


class Recorder:
    """Remembers what was made and what was there."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.had: list[str] = []

    def started(self, step: Step) -> None:
        """Not of interest."""

    def progressed(self, step: Step, share: float, words: str) -> None:
        """A share must be one."""
        assert 0 <= share <= 1

    def finished(self, step: Step, made: bool, seconds: float) -> None:
        """Sorts the labels."""
        (self.made if made else self.had).append(step.label)

    def told(self, words: str) -> None:
        """Not of interest."""


def start_package(recipe: Path, out: Path) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "draftyard", "package", str(recipe), "--out", str(out), "--workers", "1"]
    # A shell that starts the tests in the background makes all below it deaf to SIGINT.
    return subprocess.Popen(
        argv,
        env={"PYTHONPATH": str(PACKAGE)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def leftovers(out: Path) -> list[Path]:
    return list(out.rglob(".staging-*"))


def test_everything_is_made_once(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    first, second = Recorder(), Recorder()
    _, built = build(recipe, BuildOptions(out), first)
    build(recipe, BuildOptions(out), second)
    assert (len(first.made), first.had) == (STEPS, [])
    assert (second.made, sorted(second.had)) == ([], sorted(first.made))
    assert all((one.path / "receipt.json").is_file() for one in built)
    check(recipe, BuildOptions(out), Recorder())


def test_a_policy_makes_repositories_of_its_own_where_there_is_speculation(tmp_path: Path) -> None:
    recipe, out, policy = write_recipe(tmp_path), tmp_path / "out", tmp_path / "measured.json"
    policy.write_text('{"version": 1, "steps": [{"running": 4, "max_draft_len": 0}]}')
    build(recipe, BuildOptions(out), Recorder())
    again = Recorder()
    _, built = build(recipe, BuildOptions(out, policy=policy), again)
    assert sorted(again.made) == ["repository draft_target-fp32-cpu-tp1", "repository ngram-fp32-cpu-tp1"]
    packaged_now = [one for one in built if one.kind == StepKind.REPOSITORY.value]
    files = {one.label.split()[1].split("-")[0]: (one.path / "policy.json").exists() for one in packaged_now}
    assert files == {"none": False, "ngram": True, "draft_target": True}
    policy.write_text('{"version": 1, "step": []}')
    with pytest.raises(Failure, match=r"measured\.json is no policy: .*step"):
        build(recipe, BuildOptions(out, policy=policy), Recorder())


def test_engines_first_and_repositories_later(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    first, second = Recorder(), Recorder()
    build(recipe, BuildOptions(out, ENGINES), first)
    with pytest.raises(Failure, match="was not made yet") as caught:
        packaged(recipe, out)
    assert caught.value.code == 3
    build(recipe, BuildOptions(out), second)
    assert {label.split()[0] for label in first.made} == {"checkpoint", "engine"}
    assert {label.split()[0] for label in second.made} == {"repository"}
    names = [one.variant.name for one in packaged(recipe, out)[1]]
    assert len(names) == 3
    chosen = repository_to_serve(recipe, out, names[1])
    assert (chosen / "models" / "tensorrt_llm_bls" / "config.pbtxt").is_file()
    assert repository_to_serve(chosen, out, None) == chosen
    with pytest.raises(Failure, match="several variants"):
        repository_to_serve(recipe, out, None)
    with pytest.raises(Failure, match="no variant medusa"):
        repository_to_serve(recipe, out, "medusa")


def test_a_changed_limit_says_so_and_makes_only_what_depends_on_it(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    build(recipe, BuildOptions(out), Recorder())
    assert {step.state for step in plan(recipe, out).steps} == {StepState.HAVE}
    write_recipe(tmp_path, (("max_num_tokens: 64", "max_num_tokens: 96"),))
    reasons = {step.label: step.reason for step in plan(recipe, out).steps}
    assert reasons["checkpoint target fp32 tp1 pp1"] == "have"
    assert reasons["engine none-fp32-cpu-tp1"] == "changed: limits.max_num_tokens 64 -> 96"
    recorder = Recorder()
    build(recipe, BuildOptions(out), recorder)
    assert {label.split()[0] for label in recorder.had} == {"checkpoint"}
    assert {step.state for step in plan(recipe, out).steps} == {StepState.HAVE}


def test_a_changed_byte_is_found_by_check_alone(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    _, built = build(recipe, BuildOptions(out), Recorder())
    guest = built[2].path / "models" / "postprocessing" / "1" / "model.py"
    text = guest.read_text()
    guest.write_text(text.replace('"""', "'''", 1))
    assert {step.state for step in plan(recipe, out).steps} == {StepState.HAVE}
    with pytest.raises(Failure, match=r"models/postprocessing/1/model.py changed since it was built") as caught:
        check(recipe, BuildOptions(out), Recorder())
    assert caught.value.code == 1


def test_a_bad_byte_is_found_in_everything_that_shares_it(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    _, built = build(recipe, BuildOptions(out), Recorder())
    weights = next(one for one in built if one.kind == "checkpoint").path / "rank0.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(Failure, match=r"repository none-fp32-cpu-tp1: engines/tensorrt_llm/rank0.safetensors changed"):
        check(recipe, BuildOptions(out, kinds=ENGINES), Recorder())


def test_killed_builds_leave_nothing_that_looks_finished(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    dice, rounds, kills = random.Random(7), 0, 0
    while kills < 12:
        rounds += 1
        out = tmp_path / f"out{rounds}"
        finished = False
        while not finished and kills < 12:
            program = start_package(recipe, out)
            assert program.stderr is not None
            line = program.stderr.readline()
            while line and not line.startswith("making"):
                line = program.stderr.readline()
            time.sleep(dice.uniform(0, 0.4))
            program.send_signal(signal.SIGKILL)
            program.communicate(timeout=30)
            finished = program.returncode == 0
            kills += not finished
            assert_whole(recipe, out)
        recorder = Recorder()
        build(recipe, BuildOptions(out), recorder)
        assert len(recorder.made) + len(recorder.had) == STEPS
        assert leftovers(out) == []
        check(recipe, BuildOptions(out), Recorder())


def assert_whole(recipe: Path, out: Path) -> None:
    """Whatever has a receipt is whole, byte for byte."""
    store = Store(StoreRoots(out), {}, ())
    for step in draw_recipe(recipe, None).blueprint.steps:
        if store.receipt(step) is not None:
            assert store.check(step) == []


def test_two_builds_at_once_make_each_artefact_once(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    programs = [start_package(recipe, out) for _ in range(2)]
    outputs = [program.communicate(timeout=120) for program in programs]
    assert [program.returncode for program in programs] == [0, 0], outputs
    built = [label for _, errors in outputs for label in re.findall(r"^built  (.*?)  ", errors, re.MULTILINE)]
    assert len(built) == len(set(built)) == STEPS
    assert leftovers(out) == []


def test_an_interrupt_ends_a_build_that_waits_for_another(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    key = draw_recipe(recipe, None).blueprint.steps[0].key
    lock = StoreRoots(out).folder(StepKind.CHECKPOINT) / ".locks" / f"{key}.lock"
    with exclusive(lock, lambda who: None):
        program = start_package(recipe, out)
        assert program.stderr is not None
        while "waiting for process" not in (line := program.stderr.readline()):
            assert line
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    assert program.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert leftovers(out) == []


def test_an_unwritable_place_is_the_environment(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with pytest.raises(Failure, match="cannot be made") as caught:
        build(recipe, BuildOptions(Path("/proc/draftyard")), Recorder())
    assert caught.value.code == 3


def test_the_recipes_of_the_project_are_valid() -> None:
    recipes = sorted((PACKAGE.parent / "engines" / "recipes").glob("*.yaml"))
    assert recipes
    for path in recipes:
        assert capability_problems(read_recipe(path).recipe) == []


def test_what_is_verified_has_the_limits_of_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    build(recipe, BuildOptions(out), Recorder())
    asked: dict[str, object] = {}
    monkeypatch.setattr("draftyard.verbs.prove.verify", lambda **words: asked.update(words))
    monkeypatch.setattr("draftyard.verbs.prove.render", lambda report, page: page)
    prove(recipe, ProveOptions(out, None, False, ("ngram-fp32-cpu-tp1", "none-fp32-cpu-tp1")), print)
    served = asked["repositories"]
    assert isinstance(served, tuple)
    assert [(one.name, one.max_input_len, one.max_seq_len, one.max_draft_len) for one in served] == [
        ("none-fp32-cpu-tp1", 32, 64, 0),
        ("ngram-fp32-cpu-tp1", 32, 64, 3),
    ]
    assert asked["prompts"] == tmp_path / "prompts"
    assert asked["artifact_directory"] == out / "deploy" / "out" / "tiny"
    assert asked["reuse_evidence"] is True


def test_a_source_that_changes_under_the_build_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"

    def draw_then_change(path: Path, cache: Path | None, rehearsal: bool, policy: Policy | None) -> object:
        drawing = draw_recipe(path, cache, rehearsal, policy)
        settings = tmp_path / "target" / "generation_config.json"
        settings.write_text(settings.read_text().replace("[2, 3]", "[2]"))
        return drawing

    monkeypatch.setattr("draftyard.verbs.build.draw_recipe", draw_then_change)
    with pytest.raises(Failure, match="changed since the plan was made"):
        build(recipe, BuildOptions(out), Recorder())
    assert leftovers(out) == []
