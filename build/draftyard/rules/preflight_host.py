"""Holds a machine, its GPUs apart, against what serving a release takes."""

from collections.abc import Iterable

from draftyard.nouns.appliance import ContainerHost, Surroundings
from draftyard.nouns.finding import Check, Finding
from draftyard.nouns.lane import Lane
from draftyard.nouns.sealed_release import Release, ReleasedVariant

_GIB = 1 << 30
_LEAST_SCRATCH = _GIB
_LEAST_SHARED = _GIB // 4
_LEAST_SHARED_RANKS = _GIB
_SKEW_S = 300.0


def host_checks(variant: ReleasedVariant, found: Surroundings, built_at_s: float) -> tuple[Check, ...]:
    """Clock, disk, shared and locked memory, ports, and whether the service user can write. Times in seconds."""
    return (
        _clock(found, built_at_s),
        *_synchronised(found),
        _room("disk", found.disk_free_bytes, _LEAST_SCRATCH, "free disk space at the scratch directory"),
        _shared(variant, found),
        *_locked(variant, found),
        _ports(found),
        _writing(found),
    )


def runtime_checks(variant: ReleasedVariant, host: ContainerHost | None, problem: str) -> tuple[Check, ...]:
    """The container runtime answers and hands out GPUs; `problem` says why it does not answer."""
    if variant.lane is Lane.REFERENCE:
        return (Check("container runtime", Finding.OK, "not needed: the reference lane brings its own server"),)
    if host is None:
        hint = "install it, start it, and give this user access"
        return (Check("container runtime", Finding.MISSING, problem or "there is none", hint),)
    what = f"{host.name} {host.version}"
    if variant.gpus and not host.gpus:
        hint = "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure (or nvidia-ctk cdi generate)"
        return (Check("container runtime", Finding.MISSING, f"{what} cannot hand out GPUs", hint),)
    return (Check("container runtime", Finding.OK, what),)


def tool_check(release: Release, version: str) -> Check:
    """A release is installed by a tool that is not older than the one that sealed it."""
    what = f"sealed by draftyard {release.tool_version}, this is {version}"
    if _numbers(release.tool_version) > _numbers(version):
        return Check("tool", Finding.MISSING, what, "use the draftyard whose wheel is in the release")
    return Check("tool", Finding.OK, what)


def _clock(found: Surroundings, built_at_s: float) -> Check:
    ahead_s = built_at_s - found.now_s
    if ahead_s > _SKEW_S:
        what = f"the release was built {ahead_s / 3600:.1f} hours in the future of this machine's clock"
        return Check("clock", Finding.MISSING, what, "set the clock: dates of signatures and logs depend on it")
    return Check("clock", Finding.OK, f"the release was built {-ahead_s / 86400:.1f} days ago")


def _synchronised(found: Surroundings) -> Iterable[Check]:
    if found.clock_synchronised is False:
        hint = "name a time server of your network, or set the clock by hand from time to time"
        yield Check("time source", Finding.WARNING, "the clock is not synchronised", hint)


def _shared(variant: ReleasedVariant, found: Surroundings) -> Check:
    least = _LEAST_SHARED_RANKS if variant.gpus > 1 else _LEAST_SHARED
    return _room("/dev/shm", found.shared_memory_bytes, least, "give the service more shared memory (--shm-size 1g)")


def _locked(variant: ReleasedVariant, found: Surroundings) -> Iterable[Check]:
    limit = found.locked_memory_bytes
    if variant.gpus and limit is not None:
        what = f"memory that may be locked is limited to {limit / _GIB:.2f} GiB; GPUs read from locked memory"
        yield Check("memlock", Finding.WARNING, what, "set LimitMEMLOCK=infinity, or --ulimit memlock=-1")


def _room(name: str, found_bytes: int | None, least_bytes: int, hint: str) -> Check:
    if found_bytes is None:
        return Check(name, Finding.MISSING, "there is none", hint)
    what = f"{found_bytes / _GIB:.1f} GiB free, {least_bytes / _GIB:g} GiB needed"
    return Check(
        name,
        Finding.OK if found_bytes >= least_bytes else Finding.MISSING,
        what,
        "" if found_bytes >= least_bytes else hint,
    )


def _ports(found: Surroundings) -> Check:
    if found.busy_ports:
        shown = ", ".join(str(port) for port in found.busy_ports)
        return Check(
            "ports", Finding.MISSING, f"in use: {shown}", "stop what listens there (ss -ltnp), or give --ports"
        )
    return Check("ports", Finding.OK, "free")


def _writing(found: Surroundings) -> Check:
    if found.unwritable:
        hint = f"create the scratch directory and give it to {found.user}"
        return Check("scratch", Finding.MISSING, f"{found.user} cannot write: {found.unwritable}", hint)
    return Check("scratch", Finding.OK, f"{found.user} can write and read back")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
