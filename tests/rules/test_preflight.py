"""Each thing that keeps a release from running is found beforehand, with what to do; nothing else is."""

from dataclasses import replace

import pytest
from tests.fakes.sealed_release import IMAGE, files_of, manifest_of, plans
from tests.rules.test_probe_texts import recorded

from draftyard.nouns.appliance import Accelerators, ContainerHost, GpuState, ImageState, Surroundings
from draftyard.nouns.finding import Check, Finding
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane
from draftyard.rules.preflight_gpus import gpu_checks, image_checks
from draftyard.rules.preflight_host import host_checks, runtime_checks, tool_check
from draftyard.rules.probe_texts import gpu_links, gpu_processes, gpu_states, image_state

NVLINK = {(0, 1): "NV18"}
NOW_S = 1_780_000_000.0
AT_EASE = Surroundings(
    now_s=NOW_S,
    clock_synchronised=True,
    disk_free_bytes=100 << 30,
    shared_memory_bytes=8 << 30,
    locked_memory_bytes=None,
    busy_ports=(),
    machine="x86_64",
    unwritable="",
    user="triton",
)


@pytest.fixture
def release(tmp_path):
    return manifest_of(files_of(tmp_path))


def gpus(count: int = 2, **changes: object) -> tuple[GpuState, ...]:
    first = gpu_states(recorded("gpus-h200"))[0]
    return tuple(replace(first, index=number, uuid=f"GPU-{number}", **changes) for number in range(count))


def found(checks: tuple[Check, ...], name: str) -> Check:
    (one,) = [check for check in checks if check.name == name]
    assert bool(one.hint) == (one.finding is not Finding.OK)
    return one


def bad(checks: tuple[Check, ...]) -> dict[str, Finding]:
    return {check.name: check.finding for check in checks if check.finding is not Finding.OK}


def test_the_right_gpus_are_right(release):
    checks = gpu_checks(release, plans(), Accelerators(gpus(), (), NVLINK))
    assert bad(checks) == {}
    assert found(checks, "gpu links").what == "NVLink between 2 GPUs"


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ((), "0 of 2 h200_sxm that plain needs; found 0: none"),
        (gpus(1), "1 of 2 h200_sxm that plain needs; found 1: NVIDIA H200"),
        (gpus(2, name="NVIDIA H100 80GB HBM3"), "0 of 2 h200_sxm that plain needs; found 2: NVIDIA H100 80GB HBM3"),
        (gpus(2, name="NVIDIA L40S"), "found 2: NVIDIA L40S"),
        (gpus(2, mig=True), "0 of 2 h200_sxm"),
    ],
)
def test_other_or_too_few_gpus_are_missing(release, there, words):
    check = found(gpu_checks(release, plans(), Accelerators(there, (), NVLINK)), "gpu")
    assert check.finding is Finding.MISSING
    assert words in check.what


def test_a_gpu_that_is_cut_is_named(release):
    checks = gpu_checks(release, plans(), Accelerators(gpu_states(recorded("gpus-h200")), (), NVLINK))
    assert "GPU 3 is cut into instances" in found(checks, "mig").what


def test_an_engine_of_another_capability_is_refused(release):
    """Both sides of it: built for another than its recipe says, and put on another than it was built for."""
    wrong = plans(compute_capability="8.9", gpu="NVIDIA L40S")
    checks = gpu_checks(release, wrong, Accelerators(gpus(), (), NVLINK))
    words = [check.what for check in checks if check.name == "compute capability"]
    assert "the engine was built for compute capability 8.9, h200_sxm has 9.0" in words
    assert "the engine was built for compute capability 8.9, this GPU has 9.0" in words
    here = gpu_checks(release, plans(), Accelerators(gpus(compute_capability="8.6"), (), NVLINK))
    assert found(here, "compute capability").what == "the engine was built for compute capability 9.0, this GPU has 8.6"
    assert found(here, "compute capability").finding is Finding.MISSING


def test_a_driver_below_the_floor_is_missing(release):
    check = found(gpu_checks(release, plans(), Accelerators(gpus(driver="550.54.15"), (), NVLINK)), "driver")
    assert (check.finding, check.what) == (Finding.MISSING, "driver 550.54.15, at least 580 is needed")


def test_another_driver_than_at_the_build_asks_for_the_smoke_test(release):
    """Recorded 550, later 565: plans may stop working although nothing else changed."""
    older = release.model_copy(update={"toolchain": release.toolchain.model_copy(update={"driver_floor": "545"})})
    variant = plans(driver="550.54.15")
    check = found(gpu_checks(older, variant, Accelerators(gpus(driver="565.57.01"), (), NVLINK)), "driver")
    assert check.finding is Finding.WARNING
    assert check.what == "driver 565.57.01, the engines were built and tried with 550.54.15"
    assert "smoke" in check.hint
    same = gpu_checks(older, variant, Accelerators(gpus(driver="550.54.15"), (), NVLINK))
    assert found(same, "driver").finding is Finding.OK


def test_memory_that_others_hold_is_missing(release):
    recorded_gpus = gpu_states(recorded("gpus-h200"))[:3]
    there = Accelerators(recorded_gpus, gpu_processes(recorded("processes")), gpu_links(recorded("topology-nvlink")))
    checks = gpu_checks(release, plans(), there)
    assert found(checks, "gpu memory").finding is Finding.OK, "two of three have room"
    assert "/opt/conda/bin/python, a (process 48213, GPU 0)" in found(checks, "gpu programs").what
    full = gpu_checks(release, plans(), Accelerators(gpus(free_bytes=21 << 30), (), NVLINK))
    assert found(full, "gpu memory").finding is Finding.MISSING
    assert "22.0 GiB must be free on 2 GPUs; free are: GPU 0 21.0 GiB" in found(full, "gpu memory").what


def test_gpus_without_peer_access_are_refused_where_the_engine_needs_it(release):
    there = Accelerators(gpus(), (), gpu_links(recorded("topology-phb")))
    refused = found(gpu_checks(release, plans(needs_peer_access=True), there), "gpu links")
    assert refused.finding is Finding.MISSING
    assert "GPU0-GPU1 PHB" in refused.what
    slower = found(gpu_checks(release, plans(), there), "gpu links")
    assert slower.finding is Finding.WARNING
    assert "a tenth of its rate" in slower.what
    unknown = found(gpu_checks(release, plans(), Accelerators(gpus())), "gpu links")
    assert unknown.finding is Finding.WARNING


def test_a_variant_of_the_processor_needs_no_gpu(release):
    variant = plans().model_copy(update={"gpu": Gpu.CPU, "gpus": 0, "lane": Lane.REFERENCE})
    assert bad(gpu_checks(release, variant, Accelerators(()))) == {}
    assert bad(runtime_checks(variant, None, "")) == {}


def test_the_image_of_the_release_is_right(release):
    assert bad(image_checks(release, plans(), image_state(recorded("image-inspect")), "x86_64")) == {}


def test_an_image_of_other_versions_is_refused_with_both_printed(release):
    """Engines of 10.0.1 / 0.10.0 and a server of 9.3.0 / 0.9.0 do not fit, whatever their tags say."""
    image = ImageState((str(IMAGE.digest),), {"tensorrt": "9.3.0", "tensorrt_llm": "0.9.0"})
    checks = image_checks(release, plans(tensorrt="10.0.1", tensorrt_llm="0.10.0"), image, "x86_64")
    assert found(checks, "TensorRT").what == "the image has TensorRT 9.3.0, the engines were built with 10.0.1"
    assert found(checks, "TensorRT-LLM").what == "the image has TensorRT-LLM 0.9.0, the engines were built with 0.10.0"
    assert set(bad(checks).values()) == {Finding.MISSING}
    silent = image_checks(release, plans(), ImageState((str(IMAGE.digest),), {}), "x86_64")
    assert bad(silent) == {"TensorRT": Finding.WARNING, "TensorRT-LLM": Finding.WARNING}


def test_an_image_that_is_not_there_or_is_another_is_missing(release):
    absent = found(image_checks(release, plans(), None, "x86_64"), "image")
    assert (absent.finding, "nothing is fetched" in absent.hint) == (Finding.MISSING, True)
    other = found(image_checks(release, plans(), ImageState(("sha256:12",), {}), "x86_64"), "image")
    assert "is another image" in other.what
    nameless = release.model_copy(update={"image": None})
    assert found(image_checks(nameless, plans(), None, "x86_64"), "image").finding is Finding.WARNING


def test_a_plan_of_another_kind_of_processor_is_refused(release):
    checks = image_checks(release, plans(), image_state(recorded("image-inspect")), "aarch64")
    assert found(checks, "processor").what == "the engine was built on x86_64, this is aarch64"


def test_a_machine_at_ease():
    assert bad(host_checks(plans(), AT_EASE, NOW_S - 86400)) == {}


@pytest.mark.parametrize(
    ("change", "name", "finding", "words"),
    [
        ({"now_s": NOW_S - 90000}, "clock", Finding.MISSING, "1.0 hours in the future"),
        ({"clock_synchronised": False}, "time source", Finding.WARNING, "not synchronised"),
        ({"disk_free_bytes": 1 << 20}, "disk", Finding.MISSING, "1 GiB needed"),
        ({"disk_free_bytes": None}, "disk", Finding.MISSING, "there is none"),
        ({"shared_memory_bytes": 64 << 20}, "/dev/shm", Finding.MISSING, "0.1 GiB free, 1 GiB needed"),
        ({"locked_memory_bytes": 8 << 20}, "memlock", Finding.WARNING, "limited to 0.01 GiB"),
        ({"busy_ports": (8000, 8002)}, "ports", Finding.MISSING, "in use: 8000, 8002"),
        ({"unwritable": "/srv/x: Permission denied"}, "scratch", Finding.MISSING, "triton cannot write: /srv/x"),
    ],
)
def test_a_machine_that_lacks_something(change, name, finding, words):
    check = found(host_checks(plans(), replace(AT_EASE, **change), NOW_S - 86400), name)
    assert check.finding is finding
    assert words in check.what


def test_container_runtimes():
    assert bad(runtime_checks(plans(), ContainerHost("docker", "28.5.1", True), "")) == {}
    cannot = found(runtime_checks(plans(), ContainerHost("docker", "28.5.1", False), ""), "container runtime")
    assert "cannot hand out GPUs" in cannot.what
    silent = found(runtime_checks(plans(), None, "docker does not answer"), "container runtime")
    assert (silent.finding, silent.what) == (Finding.MISSING, "docker does not answer")


def test_a_tool_older_than_the_release_is_refused(release):
    assert tool_check(release, "0.1.0").finding is Finding.OK
    assert tool_check(release, "0.2.0").finding is Finding.OK
    assert tool_check(release, "0.0.9").finding is Finding.MISSING
    assert tool_check(release.model_copy(update={"tool_version": "0.10.0"}), "0.9.0").finding is Finding.MISSING
