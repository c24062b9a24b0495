"""What tools print is read as it was recorded; another form is an error and not an empty answer."""

from pathlib import Path

import pytest

from draftyard.nouns.errors import Failure
from draftyard.rules.probe_texts import (
    docker_host,
    gpu_links,
    gpu_processes,
    gpu_states,
    image_state,
    podman_host,
)

RECORDED = Path(__file__).resolve().parents[1] / "doors" / "recorded"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


def test_gpus():
    gpus = gpu_states(recorded("gpus-h200"))
    assert [(one.index, one.name, one.mig) for one in gpus][2:] == [(2, "NVIDIA H200", False), (3, "NVIDIA H200", True)]
    assert (gpus[0].memory_bytes, gpus[2].free_bytes) == (143771 << 20, 20011 << 20)
    assert [one.mig for one in gpu_states(recorded("gpus-h100-pcie"))] == [False, False]


def test_programs_on_gpus():
    first, second = gpu_processes(recorded("processes"))
    assert (first.pid, first.name, first.used_bytes) == (48213, "/opt/conda/bin/python, a", 122880 << 20)
    assert (second.name, second.gpu_uuid[:16], second.used_bytes) == ("tritonserver", "GPU-6f1c2a70-000", None)


def test_links_of_gpus():
    links = gpu_links(recorded("topology-nvlink"))
    assert set(links.values()) == {"NV18"}
    assert len(links) == 6
    assert gpu_links(recorded("topology-phb")) == {(0, 1): "PHB"}


def test_container_runtimes():
    assert (docker_host(recorded("docker-info")).version, docker_host(recorded("docker-info")).gpus) == ("28.5.1", True)
    assert not docker_host(recorded("docker-info-plain")).gpus
    with pytest.raises(Failure, match="Cannot connect to the Docker daemon"):
        docker_host(recorded("docker-info-down"))
    assert (podman_host(recorded("podman-info"), ()).version, podman_host(recorded("podman-info"), ()).gpus) == (
        "4.9.4",
        False,
    )
    assert podman_host(recorded("podman-info"), ("nvidia.yaml",)).gpus


def test_images():
    image = image_state(recorded("image-inspect"))
    assert image.digests[0] == f"sha256:{'ab' * 32}"
    assert image.versions == {"tensorrt": "10.14.1.48", "tensorrt_llm": "1.2.1"}


@pytest.mark.parametrize(
    "read", [gpu_states, gpu_processes, gpu_links, docker_host, lambda text: podman_host(text, ()), image_state]
)
@pytest.mark.parametrize("text", ["NVIDIA-SMI has failed because it couldn't communicate", "[", "x, y"])
def test_another_form_is_an_error(read, text):
    with pytest.raises(Failure) as caught:
        read(text)
    assert "printed" in caught.value.message


def test_a_cut_topology_is_an_error():
    with pytest.raises(Failure):
        gpu_links("\tGPU0\tGPU1\nGPU0\n")
