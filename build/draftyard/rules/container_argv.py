"""The command that runs a program of the pinned image: docker, podman or enroot; offline, inputs read-only."""

from dataclasses import dataclass

from draftyard.nouns.builder import Runtime


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host inside the container; `writable` for the one staging directory alone."""

    host: str
    inside: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """One program in the pinned image. `image` is a reference by digest or tag, or for enroot a container's name.

    `gpu_uuids` pins devices by identity, because their numbers change; `user` is `uid:gid`.
    """

    image: str
    gpu_uuids: tuple[str, ...]
    mounts: tuple[Mount, ...]
    user: str
    shared_memory_gib: int = 1


def container_argv(runtime: Runtime, run: ContainerRun, command: tuple[str, ...]) -> tuple[str, ...]:
    """The whole command; `command` unchanged for `host`.

    No network, no new privileges, a read-only root with a temporary /tmp; shared memory and locked memory as NCCL
    needs them (TensorRT-LLM's container notes).
    """
    if runtime is Runtime.HOST:
        return command
    if runtime is Runtime.ENROOT:
        return _enroot(run, command)
    devices = _docker_devices(run) if runtime is Runtime.DOCKER else _podman_devices(run)
    mounts = [
        word
        for mount in run.mounts
        for word in ("--volume", f"{mount.host}:{mount.inside}:{'rw' if mount.writable else 'ro'}")
    ]
    return (
        runtime.value, "run", "--rm", "--network", "none", *devices, "--user", run.user,
        "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp:rw,size=8g",
        "--env", "HOME=/tmp", "--env", "HF_HUB_OFFLINE=1", "--workdir", "/tmp",
        "--shm-size", f"{run.shared_memory_gib}g", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864",
        *mounts, "--entrypoint", command[0], run.image, *command[1:],
    )  # fmt: skip


def _docker_devices(run: ContainerRun) -> tuple[str, ...]:
    # The quotes belong to the value: docker reads it as CSV, and several devices hold commas.
    return ("--gpus", f'"device={",".join(run.gpu_uuids)}"')


def _podman_devices(run: ContainerRun) -> tuple[str, ...]:
    return tuple(word for uuid in run.gpu_uuids for word in ("--device", f"nvidia.com/gpu={uuid}"))


def _enroot(run: ContainerRun, command: tuple[str, ...]) -> tuple[str, ...]:
    mounts = tuple(
        word
        for mount in run.mounts
        for word in ("--mount", f"{mount.host}:{mount.inside}:none:bind,{'rw' if mount.writable else 'ro'}")
    )
    return (
        "enroot", "start", "--env", f"NVIDIA_VISIBLE_DEVICES={','.join(run.gpu_uuids)}",
        "--env", "HF_HUB_OFFLINE=1", "--env", "HOME=/tmp", *mounts, run.image, *command,
    )  # fmt: skip
