"""The matrix on a cluster: each engine where its GPU is, and a machine that is lost midway."""

import threading
import time
from importlib.util import find_spec

import pytest
from tests.fakes.appliance import lay_out
from tests.fakes.builder_host import host_environment, write_programs
from tests.fakes.ray_machines import cluster
from tests.verbs.test_build import Recorder

from draftyard.doors.store import Store, StoreRoots
from draftyard.nouns.builder import Builder, Runtime
from draftyard.verbs.build import build
from draftyard.verbs.build_choices import ENGINES, BuildOptions
from draftyard.verbs.drawing import draw_recipe

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
]
BUILDER = Builder(Runtime.HOST, "trtllm-build", "builder-python", "", timeout_s=120)


class Following(Recorder):
    """Also remembers where steps made progress."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def progressed(self, step, share, words) -> None:
        self.words.append(f"{step.label}: {words}")


def test_engines_are_made_where_their_gpu_is_and_a_lost_machine_is_replaced(tmp_path):
    recipes = lay_out(tmp_path)
    programs = write_programs(tmp_path / "bin")
    h100 = host_environment(programs, ("NVIDIA H100 80GB HBM3",), "slow")
    h200 = host_environment(programs, ("NVIDIA H200",), "slow")
    machines = {"h100": ("H100", h100), "h200": ("H200", h200), "spare": ("H200", h200)}
    out = tmp_path / "out"
    recipe = recipes / "llama-3.1-8b.yaml"
    with cluster(machines) as (address, found):
        options = BuildOptions(out, ENGINES, builder=BUILDER, cluster=address, rehearsal=True)
        recorder = Following()

        def lose_one() -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until and not any("engine" in words for words in recorder.words):
                time.sleep(0.1)
            found["h200"].lose()

        thief = threading.Thread(target=lose_one)
        thief.start()
        build(recipe, options, recorder)
        thief.join()
    drawing = draw_recipe(recipe, None, True)
    store = Store(StoreRoots(out), {}, ())
    engines = [step for step in drawing.blueprint.steps if step.label.startswith("engine")]
    assert len(engines) == 16
    for step in engines:
        receipt = store.receipt(step)
        assert receipt is not None
        wanted = "H200" if step.parameters["gpu"] == "h200_sxm" else "H100"
        assert wanted in (store.path(step.kind, step.key) / "build.json").read_text()
        assert store.check(step) == []
    assert any(" on " in words and "rank 0" in words for words in recorder.words)
