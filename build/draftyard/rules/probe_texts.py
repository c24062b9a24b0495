"""Reads what nvidia-smi, docker and podman print; a text of another form is an error, never an empty answer."""

import json
import re
from collections.abc import Mapping

from draftyard.nouns.appliance import ContainerHost, GpuProcess, GpuState, ImageState
from draftyard.nouns.digest import Json
from draftyard.nouns.errors import ExitCode, Failure

GPU_FIELDS = (
    "index", "name", "uuid", "memory.total", "memory.free", "driver_version", "compute_cap", "mig.mode.current",
)  # fmt: skip
PROCESS_FIELDS = ("pid", "process_name", "gpu_uuid", "used_gpu_memory")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
# What NVIDIA's images say of themselves in their environment.
_IMAGE_VARIABLES = {"TRT_VERSION": "tensorrt", "TENSORRT_VERSION": "tensorrt", "TRTLLM_VERSION": "tensorrt_llm"}
_IMAGE_VARIABLES |= {"TENSORRTLLM_VERSION": "tensorrt_llm", "TENSORRT_LLM_VERSION": "tensorrt_llm"}


def gpu_states(text: str) -> tuple[GpuState, ...]:
    """`nvidia-smi --query-gpu` of GPU_FIELDS, CSV without header and units; memory in MiB."""
    return tuple(_gpu_state(line) for line in text.splitlines() if line.strip())


def gpu_processes(text: str) -> tuple[GpuProcess, ...]:
    """`nvidia-smi --query-compute-apps` of PROCESS_FIELDS, CSV without header and units; a name may hold commas."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        pid, _, rest = line.partition(",")
        fields = [field.strip() for field in rest.rsplit(",", 2)]
        if len(fields) != 3 or not pid.strip().isdecimal():
            raise _other_form("nvidia-smi", line)
        used = int(fields[2]) << 20 if fields[2].isdecimal() else None
        found.append(GpuProcess(int(pid), fields[0], fields[1], used))
    return tuple(found)


def gpu_links(text: str) -> Mapping[tuple[int, int], str]:
    """`nvidia-smi topo -m`: the link of each pair of GPUs; network cards and affinities are left out."""
    lines = [line for line in _ESCAPE.sub("", text).splitlines() if line.strip()]
    heads = [number for number, line in enumerate(lines) if re.match(r"\s+GPU0\b", line)]
    if not heads:
        raise _other_form("nvidia-smi topo", text)
    columns = lines[heads[0]].split()
    gpus = [place for place, name in enumerate(columns) if re.fullmatch(r"GPU\d+", name)]
    links: dict[tuple[int, int], str] = {}
    for line in lines[heads[0] + 1 :]:
        words = line.split()
        if not re.fullmatch(r"GPU\d+", words[0]):
            continue
        row = int(words[0][3:])
        for place in gpus:
            column = int(columns[place][3:])
            if len(words) <= place + 1:
                raise _other_form("nvidia-smi topo", line)
            if row < column:
                links[row, column] = words[place + 1]
    return links


def docker_host(text: str) -> ContainerHost:
    """`docker info --format '{{json .}}'`: GPUs come from the nvidia runtime or from CDI devices."""
    document = _object("docker info", text)
    version = document.get("ServerVersion")
    if not isinstance(version, str) or not version:
        errors = document.get("ServerErrors")
        raise Failure(f"docker's server does not answer: {errors}", "start it, and give this user access to its socket")
    runtimes, devices = document.get("Runtimes"), document.get("DiscoveredDevices")
    nvidia = isinstance(runtimes, Mapping) and "nvidia" in runtimes
    return ContainerHost("docker", version, nvidia or "nvidia.com/gpu" in json.dumps(devices))


def podman_host(text: str, cdi: tuple[str, ...]) -> ContainerHost:
    """`podman info --format json`; GPUs come from CDI, whose specifications are files, by name here."""
    version = _object("podman info", text).get("version")
    found = version.get("Version") if isinstance(version, Mapping) else None
    return ContainerHost("podman", str(found or "unknown"), any("nvidia" in name for name in cdi))


def image_state(text: str) -> ImageState:
    """`docker image inspect` or `podman image inspect` of one image: digests and what its environment says."""
    try:
        documents = json.loads(text)
        document = documents[0]
        digests = [str(one).rpartition("@")[2] for one in document.get("RepoDigests") or []]
        config = document.get("Config") or {}
        pairs = [str(one).partition("=")[::2] for one in config.get("Env") or []]
    except (ValueError, IndexError, KeyError, AttributeError):
        raise _other_form("image inspect", text) from None
    versions = {_IMAGE_VARIABLES[name]: value.partition("+")[0] for name, value in pairs if name in _IMAGE_VARIABLES}
    return ImageState(tuple(dict.fromkeys([*digests, str(document.get("Id", ""))])), versions)


def _gpu_state(line: str) -> GpuState:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != len(GPU_FIELDS) or not (fields[0].isdecimal() and fields[3].isdecimal()):
        raise _other_form("nvidia-smi", line)
    index, name, uuid, total, free, driver, capability, mig = fields
    # A GPU in use as a display, or cut into instances, may not tell what is free.
    left = int(free) << 20 if free.isdecimal() else 0
    return GpuState(int(index), name, uuid, int(total) << 20, left, driver, capability, mig == "Enabled")


def _object(program: str, text: str) -> Mapping[str, Json]:
    try:
        document = json.loads(text)
    except ValueError:
        raise _other_form(program, text) from None
    if not isinstance(document, Mapping):
        raise _other_form(program, text)
    return document


def _other_form(program: str, text: str) -> Failure:
    shown = " ".join(text.split())[:120]
    return Failure(f"{program} printed {shown!r}", f"run {program} by hand: it must answer", ExitCode.ENVIRONMENT)
