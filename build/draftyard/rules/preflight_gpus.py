"""Holds the GPUs of a machine against what the engines of a release were built for."""

from collections.abc import Iterable

from draftyard.nouns.appliance import Accelerators, GpuState, ImageState
from draftyard.nouns.finding import Check, Finding
from draftyard.nouns.gpu import FACTS, Gpu
from draftyard.nouns.sealed_release import EngineFacts, Release, ReleasedImage, ReleasedVariant
from draftyard.rules.gpu_products import product_of

_GIB = 1 << 30
# Context, activations and the first blocks of the KV cache, beside the engine's own bytes; a lower bound.
_BESIDE_ENGINE_BYTES = 2 * _GIB
_PEER = ("NV", "PIX", "PXB")
_SMOKE = "run the smoke test before it takes requests: draftyard verify RECIPE --profile smoke"


def gpu_checks(release: Release, variant: ReleasedVariant, found: Accelerators) -> tuple[Check, ...]:
    """Product, count, MIG, capability, driver, memory, programs and links; one finding for a variant without GPUs."""
    if not variant.gpus:
        return (Check("gpu", Finding.OK, f"{variant.name} runs on the processor"),)
    fitting = tuple(one for one in found.gpus if product_of(one.name) is variant.gpu and not one.mig)
    return (
        _count(variant, found.gpus, fitting),
        *_cut(found.gpus),
        *_capability(variant, fitting),
        *_driver(release, variant, found.gpus),
        *_memory(variant, fitting),
        *_programs(found, fitting),
        *_links(variant, found, fitting),
    )


def image_checks(
    release: Release, variant: ReleasedVariant, image: ImageState | None, machine: str
) -> tuple[Check, ...]:
    """The image is there by its digest, and its TensorRT and TensorRT-LLM are those the engines were built with."""
    wanted = release.image
    if wanted is None:
        hint = "seal the release with --image NAME@sha256:DIGEST"
        return (Check("image", Finding.WARNING, "the release names no container image", hint),)
    return (_present(wanted, image), *_versions(variant, image), *_machine(variant, machine))


def _count(variant: ReleasedVariant, gpus: tuple[GpuState, ...], fitting: tuple[GpuState, ...]) -> Check:
    names = ", ".join(sorted({one.name for one in gpus})) or "none"
    what = f"{len(fitting)} of {variant.gpus} {variant.gpu.value} that {variant.name} needs; found {len(gpus)}: {names}"
    if len(fitting) >= variant.gpus:
        return Check("gpu", Finding.OK, what)
    hint = "use a machine with these GPUs, or a release that was built for the ones it has"
    return Check("gpu", Finding.MISSING, what, hint)


def _cut(gpus: tuple[GpuState, ...]) -> Iterable[Check]:
    cut = [str(one.index) for one in gpus if one.mig]
    if cut:
        what = f"GPU {', '.join(cut)} is cut into instances (MIG); an engine needs a whole one"
        yield Check("mig", Finding.WARNING, what, "where it is to be used: nvidia-smi -i INDEX -mig 0")


def _capability(variant: ReleasedVariant, fitting: tuple[GpuState, ...]) -> Iterable[Check]:
    wanted = {FACTS[variant.gpu].compute_capability} if variant.gpu is not Gpu.CPU else set()
    built = {one.compute_capability for one in variant.engines if one.compute_capability}
    here = {one.compute_capability for one in fitting}
    for engine in sorted(built - wanted):
        what = f"the engine was built for compute capability {engine}, {variant.gpu.value} has {', '.join(wanted)}"
        yield Check("compute capability", Finding.MISSING, what, "build it on the GPU that the recipe names")
    for other in sorted(here - (built or wanted)):
        what = f"the engine was built for compute capability {', '.join(built or wanted)}, this GPU has {other}"
        yield Check("compute capability", Finding.MISSING, what, "use a release that was built for this GPU")


def _driver(release: Release, variant: ReleasedVariant, gpus: tuple[GpuState, ...]) -> Iterable[Check]:
    floor, built = release.toolchain.driver_floor, {one.driver for one in variant.engines if one.driver}
    for driver in sorted({one.driver for one in gpus}):
        if _numbers(driver) < _numbers(floor):
            what = f"driver {driver}, at least {floor} is needed"
            yield Check("driver", Finding.MISSING, what, f"install driver {floor} or later")
        elif built and driver not in built:
            what = f"driver {driver}, the engines were built and tried with {', '.join(sorted(built))}"
            yield Check("driver", Finding.WARNING, what, _SMOKE)
        else:
            yield Check("driver", Finding.OK, driver)


def _memory(variant: ReleasedVariant, fitting: tuple[GpuState, ...]) -> Iterable[Check]:
    needed = sum(one.size_bytes // one.ranks for one in variant.engines) + _BESIDE_ENGINE_BYTES
    room = [one for one in fitting if one.free_bytes >= needed]
    if fitting and len(room) < variant.gpus:
        shown = ", ".join(f"GPU {one.index} {one.free_bytes / _GIB:.1f} GiB" for one in fitting)
        what = f"{needed / _GIB:.1f} GiB must be free on {variant.gpus} GPUs; free are: {shown}"
        yield Check("gpu memory", Finding.MISSING, what, "end the programs that hold it: nvidia-smi lists them")
    elif fitting:
        yield Check("gpu memory", Finding.OK, f"at least {needed / _GIB:.1f} GiB free on {len(room)} GPUs")


def _programs(found: Accelerators, fitting: tuple[GpuState, ...]) -> Iterable[Check]:
    ours = {one.uuid: one.index for one in fitting}
    others = [one for one in found.processes if one.gpu_uuid in ours]
    if others:
        shown = ", ".join(f"{one.name} (process {one.pid}, GPU {ours[one.gpu_uuid]})" for one in others)
        what = f"other programs compute there: {shown}"
        yield Check("gpu programs", Finding.WARNING, what, "end them, or measure with them: they slow each other")


def _links(variant: ReleasedVariant, found: Accelerators, fitting: tuple[GpuState, ...]) -> Iterable[Check]:
    if variant.gpus < 2 or len(fitting) < 2:
        return
    if found.links is None:
        hint = "run nvidia-smi topo -m by hand"
        yield Check("gpu links", Finding.WARNING, "how the GPUs are linked is unknown", hint)
        return
    places = sorted(one.index for one in fitting)
    pairs = {(low, high): found.links.get((low, high), "") for low in places for high in places if low < high}
    worst = sorted({link for link in pairs.values() if not link.startswith("NV")})
    if not worst:
        yield Check("gpu links", Finding.OK, f"NVLink between {len(places)} GPUs")
        return
    shown = ", ".join(f"GPU{low}-GPU{high} {link or 'unknown'}" for (low, high), link in sorted(pairs.items()))
    peerless = any(not link.startswith(_PEER) for link in worst)
    what = f"no NVLink: {shown}; sums over {variant.gpus} ranks go over PCIe, at about a tenth of its rate"
    if peerless and any(one.needs_peer_access for one in variant.engines):
        hint = "use a variant of fewer ranks, or build without gemm_allreduce_plugin and user_buffer"
        yield Check("gpu links", Finding.MISSING, f"{what}; the engine reads the memory of other GPUs", hint)
    else:
        yield Check("gpu links", Finding.WARNING, what, "expect slower answers than measured with NVLink, or use tp 1")


def _present(wanted: ReleasedImage, image: ImageState | None) -> Check:
    name = f"{wanted.reference}@{wanted.digest}"
    load = f"load it: docker load -i {wanted.archive}" if wanted.archive else "bring it to this machine"
    if image is None:
        return Check("image", Finding.MISSING, f"{name} is not on this machine", f"{load}; nothing is fetched")
    if wanted.digest not in image.digests:
        what = f"{wanted.reference} is another image: {', '.join(image.digests)}, wanted is {wanted.digest}"
        return Check("image", Finding.MISSING, what, load)
    return Check("image", Finding.OK, name)


def _versions(variant: ReleasedVariant, image: ImageState | None) -> Iterable[Check]:
    if image is None:
        return
    for name, key, built in _built_with(variant.engines):
        found = image.versions.get(key)
        if found is None:
            what = f"the image does not tell its {name}; the engines were built with {built}"
            yield Check(name, Finding.WARNING, what, _SMOKE)
        elif found != built:
            what = f"the image has {name} {found}, the engines were built with {built}"
            yield Check(name, Finding.MISSING, what, "use the image of the release, or build with the image's version")
        else:
            yield Check(name, Finding.OK, found)


def _built_with(engines: tuple[EngineFacts, ...]) -> Iterable[tuple[str, str, str]]:
    found = {("TensorRT-LLM", "tensorrt_llm", one.tensorrt_llm) for one in engines if one.tensorrt_llm}
    found |= {("TensorRT", "tensorrt", one.tensorrt) for one in engines if one.tensorrt}
    return [(name, key, str(version)) for name, key, version in sorted(found, key=str)]


def _machine(variant: ReleasedVariant, machine: str) -> Iterable[Check]:
    for built in sorted({one.machine for one in variant.engines if one.machine} - {machine}):
        what = f"the engine was built on {built}, this is {machine}"
        yield Check(
            "processor", Finding.MISSING, what, "a plan does not run on another kind of processor: build it here"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
