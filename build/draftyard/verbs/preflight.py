"""Says whether a machine can run a release, before anything of it is installed or stopped."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

from draftyard import __version__
from draftyard.doors.appliance_probes import (
    cdi_names,
    gpu_text,
    image_text,
    image_versions,
    read_surroundings,
    runtime_text,
    topology_text,
)
from draftyard.nouns.appliance import Accelerators, ContainerHost, ImageState
from draftyard.nouns.errors import Failure
from draftyard.nouns.finding import Check, Finding
from draftyard.nouns.lane import Lane
from draftyard.nouns.sealed_release import MANIFEST_NAME, Release, ReleasedVariant
from draftyard.rules.preflight_gpus import gpu_checks, image_checks
from draftyard.rules.preflight_host import host_checks, runtime_checks, tool_check
from draftyard.rules.probe_texts import (
    GPU_FIELDS,
    PROCESS_FIELDS,
    docker_host,
    gpu_links,
    gpu_processes,
    gpu_states,
    image_state,
    podman_host,
)
from draftyard.verbs.doctor import embedded_checks
from draftyard.verbs.verify_release import Trust, verify_release

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class PreflightOptions:
    """How the release will run: the variant (None: each is looked at), the user, a scratch directory, the ports."""

    variant: str | None
    user: str | None
    scratch: Path
    runtime: str
    ports: tuple[int, ...]


def preflight(directory: Path, trust: Trust, options: PreflightOptions) -> tuple[Check, ...]:
    """All findings; when the release itself is not whole, that alone. Nothing is written but a probe in `scratch`.

    Failure when the release has no such variant.
    """
    try:
        verified = verify_release(directory, trust)
    except Failure as failure:
        return (Check("release", Finding.MISSING, failure.message, failure.hint),)
    release, signer = verified.release, verified.signer
    words = f"{release.name}, {len(release.files)} files as sealed, " + (f"by {signer}" if signer else "not signed")
    whole = Check("release", Finding.OK if signer else Finding.WARNING, words, "" if signer else "sign it with --key")
    variants = _chosen(release, options.variant)
    found, trouble = _tried("gpu", _accelerators, Accelerators(()))
    surroundings = read_surroundings(options.scratch, options.ports, options.user, directory / MANIFEST_NAME)
    built_at = datetime.strptime(release.built_at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    checks = [whole, tool_check(release, __version__), *trouble]
    for variant in variants:
        checks += host_checks(variant, surroundings, built_at.timestamp())
        if not (trouble and variant.gpus):
            checks += gpu_checks(release, variant, found)
        checks += _container_checks(release, variant, options.runtime, surroundings.machine)
    return tuple(dict.fromkeys(checks))


def _chosen(release: Release, name: str | None) -> tuple[ReleasedVariant, ...]:
    chosen = tuple(one for one in release.variants if name in (None, one.name))
    if not chosen:
        names = ", ".join(one.name for one in release.variants)
        raise Failure(f"the release has no variant {name}", f"choose from {names}")
    return chosen


def _tried(name: str, ask: Callable[[], Found], otherwise: Found) -> tuple[Found, tuple[Check, ...]]:
    """What a probe found, or a finding that it failed: one broken probe does not hide the others."""
    try:
        return ask(), ()
    except Failure as failure:
        return otherwise, (Check(name, Finding.MISSING, failure.message, failure.hint),)


def _accelerators() -> Accelerators:
    text = gpu_text(GPU_FIELDS)
    if text is None:
        return Accelerators(())
    gpus = gpu_states(text)
    processes = gpu_processes(gpu_text(PROCESS_FIELDS, processes=True) or "")
    topology = topology_text() if len(gpus) > 1 else None
    return Accelerators(gpus, processes, None if topology is None else gpu_links(topology))


def _container_checks(release: Release, variant: ReleasedVariant, runtime: str, machine: str) -> tuple[Check, ...]:
    if variant.lane is Lane.REFERENCE:
        return (*runtime_checks(variant, None, ""), *embedded_checks())
    host: ContainerHost | None = None
    problem = ""
    try:
        text = runtime_text(runtime)
        host = podman_host(text, cdi_names()) if runtime == "podman" else docker_host(text)
    except Failure as failure:
        problem = failure.message
    checks = runtime_checks(variant, host, problem)
    if host is None:
        return checks
    return (*checks, *image_checks(release, variant, _image(release, runtime), machine))


def _image(release: Release, runtime: str) -> ImageState | None:
    wanted = release.image
    if wanted is None:
        return None
    # An image that was loaded from a file has a name, and no digest of a registry.
    for reference in (f"{wanted.reference}@{wanted.digest}", wanted.reference):
        text = image_text(runtime, reference)
        if text is not None:
            found = image_state(text)
            asked = {} if len(found.versions) == 2 else image_versions(runtime, reference)
            return replace(found, versions={**found.versions, **asked})
    return None
