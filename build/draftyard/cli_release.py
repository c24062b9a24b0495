"""The words that seal a release, check one, and look whether a machine can run it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from draftyard.nouns.errors import ExitCode

if TYPE_CHECKING:
    from draftyard.nouns.finding import Check
    from draftyard.verbs.verify_release import Trust

# The class that argparse makes for subcommands has no public name.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_release_words(commands: Commands) -> None:
    """`release` and `verify-release`."""
    words = "seal packaged variants with all that an appliance needs, and sign it"
    seal = commands.add_parser("release", help=words, description=f"S{words[1:]}.", allow_abbrev=False)
    seal.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    seal.add_argument("--variant", action="append", default=[], help="only this variant; may be given again")
    seal.add_argument("--policy", type=Path, metavar="FILE", help="the policy they were packaged with")
    seal.add_argument("--artifact-dir", type=Path, help="where verify left its report (default: deploy/out/NAME)")
    seal.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of the tool and of its lock file, sealed too")
    seal.add_argument("--requirements", type=Path, metavar="FILE", help="lock file (default: that of the checkout)")
    seal.add_argument("--image", metavar="NAME@sha256:DIGEST", help="the server's container image")
    seal.add_argument("--image-archive", type=Path, metavar="FILE", help="that image as a file, sealed too")
    seal.add_argument("--key", type=Path, metavar="FILE", help="SSH key that signs (default: unsigned)")
    place = seal.add_mutually_exclusive_group()
    place.add_argument("--output", type=Path, metavar="DIR", help="directory to make (default: in deploy/out/releases)")
    place.add_argument("--archive", type=Path, metavar="FILE", help="one file in its place, .tar or .tar.zst")
    seal.add_argument("--out", type=Path, default=Path(), help="directory of all artefacts (default: here)")
    _format(seal)
    words = "check who signed a release, and every byte of it"
    check = commands.add_parser("verify-release", help=words, description=f"C{words[1:]}.", allow_abbrev=False)
    check.add_argument("release", type=Path, metavar="DIR|ARCHIVE", help="the release")
    _trust(check)
    _format(check)


def add_preflight_words(doctor: argparse.ArgumentParser) -> None:
    """What `doctor` is told of a release and of how it will run."""
    group = doctor.add_argument_group("before a release is installed")
    group.add_argument("--release", type=Path, metavar="DIR", help="also look whether this machine can run it")
    group.add_argument("--variant", help="which variant of the release (default: each)")
    group.add_argument("--service-user", help="user that the server will run as (default: this one)")
    group.add_argument("--scratch", type=Path, help="directory that it may write to (default: OUT/deploy/out)")
    group.add_argument("--runtime", choices=("docker", "podman"), default="docker", help="default: docker")
    group.add_argument(
        "--ports", type=_ports, default=(8000, 8001, 8002), help="HTTP, gRPC, metrics (default: 8000,8001,8002)"
    )
    _trust(group)


def preflight_checks(arguments: argparse.Namespace) -> "tuple[Check, ...]":
    """`draftyard doctor --release`."""
    from draftyard.verbs.preflight import PreflightOptions, preflight

    options = PreflightOptions(
        variant=arguments.variant,
        user=arguments.service_user,
        scratch=arguments.scratch or arguments.out / "deploy" / "out",
        runtime=arguments.runtime,
        ports=arguments.ports,
    )
    return preflight(arguments.release, trust_of(arguments), options)


def trust_of(arguments: argparse.Namespace) -> "Trust":
    """Whose signature counts."""
    from draftyard.verbs.verify_release import DEFAULT_SIGNERS, Trust

    return Trust(arguments.allowed_signers or DEFAULT_SIGNERS, arguments.allow_unsigned)


def release_command(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    """`draftyard release`."""
    from draftyard.cli_show import print_json, tell
    from draftyard.verbs.release import ReleaseOptions, release

    options = ReleaseOptions(
        out=arguments.out,
        variants=tuple(arguments.variant),
        policy=arguments.policy,
        report=arguments.artifact_dir,
        wheels=arguments.wheels,
        requirements=arguments.requirements,
        image=arguments.image,
        image_archive=arguments.image_archive,
        key=arguments.key,
        output=arguments.output,
        archive=arguments.archive,
    )
    sealed = release(arguments.recipe, options, tell)
    found = sealed.release
    if arguments.format == "json":
        size = sum(record.size_bytes for record in found.files)
        print_json({"path": str(sealed.path), "made": sealed.made, "files": len(found.files), "bytes": size})
    else:
        if not found.signed:
            tell("not signed: verify-release refuses it unless it is told --allow-unsigned; sign with --key")
        print(f"{'sealed' if sealed.made else 'have'}  {sealed.path}")
    return ExitCode.DONE


def verify_release_command(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    """`draftyard verify-release`."""
    from draftyard.cli_show import print_json, size_words
    from draftyard.verbs.verify_release import verify_release

    verified = verify_release(arguments.release, trust_of(arguments))
    found = verified.release
    if arguments.format == "json":
        counts = {"files": len(found.files), "bytes": verified.read_bytes}
        print_json({"name": found.name, "signer": verified.signer or None, "built_at": found.built_at, **counts})
    else:
        who = f"signed by {verified.signer}" if verified.signer else "NOT SIGNED by anyone known"
        print(f"{found.name}: {len(found.files)} files, {size_words(verified.read_bytes)}, all as sealed; {who}")
    return ExitCode.DONE


def _trust(command: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    command.add_argument(
        "--allowed-signers", type=Path, metavar="FILE", help="whose signatures count (default: in /etc/draftyard)"
    )
    command.add_argument("--allow-unsigned", action="store_true", help="accept a release that nobody signed")


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(int(part) for part in text.split(","))
    if not all(0 < port < 65536 for port in ports) or len(set(ports)) != len(ports):
        raise argparse.ArgumentTypeError(f"{text} is no list of different ports")
    return ports


def _format(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")
