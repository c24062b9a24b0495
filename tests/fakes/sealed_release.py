"""A small sealed release that needs no engine: made by the same code that seals a real one."""

import json
from pathlib import Path

from draftyard.doors.release_archive import write_archive
from draftyard.doors.release_files import SealedFile, sealed_file, sealed_text, write_directory
from draftyard.doors.shell import run
from draftyard.doors.signatures import sign
from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import Lane, SpeculatorKind
from draftyard.nouns.network import Precision
from draftyard.nouns.sealed_release import EngineFacts, Release, ReleasedImage, ReleasedVariant
from draftyard.nouns.toolchain import Toolchain

TOOLCHAIN = Toolchain(
    tensorrt_llm="1.2.1",
    tensorrt="10.14.1.48",
    cuda="13.1.0",
    driver_floor="580",
    triton_image="tritonserver:26.04-trtllm-python-py3",
    store_format=2,
)
IMAGE = ReleasedImage(reference="tritonserver", digest=f"sha256:{'ab' * 32}")
PLAN = EngineFacts(
    place="repositories/plain/engines/tensorrt_llm",
    ranks=2,
    size_bytes=40 << 30,
    tensorrt_llm="1.2.1",
    tensorrt="10.14.1.48",
    driver="580.95.05",
    compute_capability="9.0",
    gpu="NVIDIA H200",
    machine="x86_64",
)


def plans(**changes: object) -> ReleasedVariant:
    """A variant of two ranks for two H200, its engine's facts changed."""
    return ReleasedVariant(
        name="plain",
        lane=Lane.TENSORRT,
        speculator=SpeculatorKind.NONE,
        precision=Precision.FP8,
        gpu=Gpu.H200_SXM,
        gpus=2,
        repository="repositories/plain",
        repository_key="0" * 64,
        keys=("0" * 64,),
        engines=(PLAN.model_copy(update=changes),),
    )


def files_of(root: Path) -> tuple[SealedFile, ...]:
    """Two ranks with the same bytes, more than a piece long, and small files."""
    root.mkdir(parents=True, exist_ok=True)
    engine = root / "rank.engine"
    engine.write_bytes(bytes(range(256)) * 33000)
    place = PLAN.place
    return (
        sealed_text("recipe.yaml", "version: 1\n"),
        sealed_text(f"{place}/.keep", b""),
        sealed_text(f"{place}/config.json", "{}"),
        sealed_file(f"{place}/rank0.engine", engine),
        sealed_file(f"{place}/rank1.engine", engine),
        sealed_text(f"{place}/{'long-' * 30}name/x", "deep"),
    )


def manifest_of(files: tuple[SealedFile, ...], **changes: object) -> Release:
    release = Release(
        release_format=1,
        name="tiny",
        tool_version="0.1.0",
        built_at="2026-01-02T03:04:05Z",
        signed=False,
        toolchain=TOOLCHAIN,
        image=IMAGE,
        variants=(plans(),),
        files=tuple(sorted((one.record for one in files), key=lambda record: record.path)),
    )
    return release.model_copy(update=changes)


def seal(root: Path, name: str, key: Path | None = None, **changes: object) -> Path:
    """The release `root`/`name`: an archive when the name says so, else a directory."""
    files = tuple(sorted(files_of(root / "parts"), key=lambda one: one.record.path))
    release = manifest_of(files, **{"signed": key is not None, **changes})
    return write(root / name, release.model_dump(mode="json"), files, key)


def write(path: Path, document: object, files: tuple[SealedFile, ...], key: Path | None = None) -> Path:
    data = json.dumps(document).encode()
    signature = None if key is None else sign(data, key, "draftyard")
    if ".tar" in path.name:
        write_archive(path, data, signature, files)
    else:
        write_directory(path, data, signature, files)
    return path


def make_key(path: Path, who: str = "builder") -> Path:
    """A key, and beside it `NAME.allowed` that allows it."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", str(path)], timeout_s=30)
    public = path.with_name(path.name + ".pub").read_text()
    path.with_name(path.name + ".allowed").write_text(f'{who} namespaces="draftyard" {public}')
    return path
