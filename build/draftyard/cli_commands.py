"""What each word of the command line does: it opens its verb, and shows what came back."""

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from draftyard import __version__
from draftyard.cli_gateway import gateway_command, gateway_options
from draftyard.cli_release import preflight_checks, release_command, verify_release_command
from draftyard.nouns.errors import ExitCode, Failure

if TYPE_CHECKING:
    from draftyard.nouns.builder import Builder

Command: TypeAlias = Callable[[argparse.Namespace, tuple[str, ...]], int]


def _init(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from pathlib import Path

    from draftyard.cli_show import tell
    from draftyard.verbs.init import InitOptions, init

    output = arguments.output or Path(f"{arguments.model.resolve().name.lower()}.yaml")
    written = init(arguments.model, InitOptions(output, arguments.draft, arguments.prompts))
    tell(f"wrote {written}; next: draftyard plan {written}")
    return ExitCode.DONE


def _schema(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json
    from draftyard.verbs.schema import policy_schema, recipe_schema

    print_json(policy_schema() if arguments.of == "policy" else recipe_schema())
    return ExitCode.DONE


def _inspect(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json, print_table
    from draftyard.verbs.source_facts import directory_facts

    facts = directory_facts(arguments.model)
    if arguments.format == "json":
        print_json(facts)
    else:
        print_table(str(arguments.model), ("fact", "value"), [(name, str(value)) for name, value in facts.items()])
    return ExitCode.DONE


def _plan(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_forecast import show_comparisons, show_forecasts
    from draftyard.cli_show import print_json, print_table, size_words, tell
    from draftyard.verbs.forecast import ForecastOptions
    from draftyard.verbs.plan import plan

    options = ForecastOptions(arguments.acceptance, arguments.input_tokens, arguments.output_tokens)
    found = plan(arguments.recipe, arguments.out, options)
    if arguments.html is not None:
        from draftyard.verbs.forecast_pictures import write_pictures

        tell(f"wrote {write_pictures(found.recipe_name, found.forecasts, arguments.html)}")
    if arguments.format == "json":
        print_json(found.as_json())
        return ExitCode.DONE
    for note in found.notes:
        tell(note)
    steps = [(step.label, step.reason, step.key[:12], step.call) for step in found.steps]
    print_table(f"steps of {found.recipe_name}", ("step", "state", "key", "call"), steps)
    parts = [
        (memory.variant, part.part, size_words(part.bytes), part.formula)
        for memory in found.memory
        for part in memory.parts
    ]
    print_table("memory while serving", ("variant", "part", "size", "formula"), parts)
    totals = [(memory.variant, size_words(memory.total_bytes)) for memory in found.memory]
    print_table("memory in all", ("variant", "size"), totals)
    show_forecasts(found.forecasts)
    show_comparisons(found.comparisons)
    for note in found.forecast_notes:
        tell(note)
    return ExitCode.DONE


def _doctor(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json, print_table
    from draftyard.verbs.doctor import as_json, doctor, exit_code

    checks = preflight_checks(arguments) if arguments.release is not None else doctor(arguments.out)
    if arguments.measure and not exit_code(checks):
        from draftyard.verbs.doctor import measured

        checks = (*checks, *measured(arguments.out))
    if arguments.format == "json":
        print_json(as_json(checks))
    else:
        rows = [(check.name, check.finding.value, check.what, check.hint) for check in checks]
        print_table(f"draftyard {__version__}", ("check", "finding", "what", "hint"), rows)
    return exit_code(checks)


def _builder(arguments: argparse.Namespace) -> "Builder":
    from draftyard.nouns.builder import Builder, Runtime

    return Builder(
        runtime=Runtime(arguments.builder),
        executable=arguments.builder_executable,
        python=arguments.builder_python,
        image=arguments.builder_image or "",
        timeout_s=arguments.step_timeout * 3600,
    )


def _build(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    import sys

    from draftyard.cli_show import BarWatcher, PlainWatcher, print_json, progress_bars
    from draftyard.verbs.build import Built, build, check
    from draftyard.verbs.build_choices import ENGINES, REPOSITORIES, BuildOptions

    options = BuildOptions(
        out=arguments.out / "rehearsal" if arguments.rehearse else arguments.out,
        kinds=REPOSITORIES if arguments.command == "package" else ENGINES,
        workers=arguments.workers,
        memory_bytes=int(arguments.memory_gib * (1 << 30)) if arguments.memory_gib else None,
        call=call,
        builder=_builder(arguments),
        cluster=arguments.ray_address if arguments.executor == "ray" else None,
        rehearsal=arguments.rehearse,
        policy=arguments.policy if arguments.command == "package" else None,
    )
    if arguments.check:
        check(arguments.recipe, options, PlainWatcher())
        return ExitCode.DONE
    built: tuple[Built, ...]
    if sys.stderr.isatty():
        with progress_bars() as bars:
            _, built = build(arguments.recipe, options, BarWatcher(bars))
    else:
        _, built = build(arguments.recipe, options, PlainWatcher())
    if arguments.format == "json":
        print_json([{"label": one.label, "kind": one.kind, "key": one.key, "path": str(one.path)} for one in built])
    else:
        wanted = "repository" if arguments.command == "package" else "engine"
        for one in built:
            if one.kind == wanted:
                print(f"{one.label}  {one.path}")
    return ExitCode.DONE


def _serve(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.nouns.server import Ports
    from draftyard.verbs.repositories import repository_to_serve
    from draftyard.verbs.serve import serve

    given = (arguments.http_port, arguments.grpc_port, arguments.metrics_port)
    if any(given) and not all(given):
        raise Failure("only some of the three ports are given", "give --http-port, --grpc-port and --metrics-port")
    repository = repository_to_serve(arguments.what, arguments.out, arguments.variant)
    log_path = arguments.log or arguments.out / "deploy" / "out" / "server.log"
    openai = gateway_options(arguments) if arguments.openai else None
    ports = Ports(*given) if all(given) else None
    return serve(repository, log_path=log_path, ports=ports, openai=openai, policy=arguments.policy)


def _verify(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json, tell
    from draftyard.nouns.load import Profile
    from draftyard.verbs.prove import ProveOptions, prove
    from draftyard.verbs.render import summarise
    from draftyard.verbs.verify import Effort

    options = ProveOptions(
        out=arguments.out,
        artifact_directory=arguments.artifact_dir,
        again=arguments.again,
        variants=tuple(arguments.variant),
        effort=Effort(Profile(arguments.profile), arguments.minutes, arguments.golden),
        policy=arguments.policy,
        url=arguments.url,
        metrics_url=arguments.metrics_url,
    )
    report, page = prove(arguments.recipe, options, tell)
    if arguments.format == "json":
        print_json(report.model_dump(mode="json"))
    else:
        summarise(report)
        print(f"report: {page}")
    return report.exit_code


def _fidelity(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json, print_table
    from draftyard.verbs.fidelity import FidelityOptions, fidelity

    options = FidelityOptions(arguments.out, arguments.texts, arguments.samples)
    found = fidelity(arguments.recipe, options, lambda share, words: None)
    if arguments.format == "json":
        print_json(found.as_json())
        return ExitCode.DONE
    rows = [
        ("texts, tokens", f"{found.texts}, {found.tokens}"),
        ("same likeliest next token", f"{found.agreement:.2%}"),
        ("mean KL divergence", f"{found.mean_divergence:.4g} nats"),
        ("99th percentile of it", f"{found.worst_percentile_divergence:.4g} nats"),
    ]
    print_table("FP8 against 16 bit", ("figure", "value"), rows)
    return ExitCode.DONE


def _calibrate(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json, print_table, tell
    from draftyard.verbs.calibrate import CalibrateOptions, calibrate_recipes

    options = CalibrateOptions(arguments.out, tuple(arguments.report), arguments.sweep)
    results, path = calibrate_recipes(arguments.recipe, options)
    if arguments.format == "json":
        print_json({one.key: one.entry.model_dump(mode="json") for one in results})
        return ExitCode.DONE
    rows = [
        (
            one.key,
            str(one.entry.points),
            str(len(one.entry.models)),
            f"{one.error_before:.1%}",
            f"{one.error_after:.1%}",
            ", ".join(f"{name} {spread:.1%}" for name, spread in one.spreads()),
        )
        for one in results
    ]
    columns = ("lane/device/precision", "points", "models", "median error before", "after", "spread that is left")
    print_table("calibrated", columns, rows)
    if any(len(one.entry.models) == 1 for one in results):
        tell("calibrated on one model size: forecasts of other sizes keep wider intervals; measure a second one")
    tell(f"kept in {path}; draftyard plan uses it from now on")
    return ExitCode.DONE


def _report(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.verbs.render import render

    print(render(arguments.report, arguments.html or arguments.report.with_suffix(".html")))
    return ExitCode.DONE


def _demo_model(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    from draftyard.cli_show import print_json
    from draftyard.verbs.demo_model import demo_model

    models = demo_model(arguments.directory, arguments.wheel)
    if arguments.format == "json":
        made = {"target": models.target_dir, "draft": models.draft_dir}
        made |= {"medusa": models.medusa_dir, "eagle": models.eagle_dir}
        print_json({**{name: str(path) for name, path in made.items()}, "sha256": dict(models.digests)})
    else:
        for name, digest in models.digests:
            print(f"{digest}  {arguments.directory / name}")
    return ExitCode.DONE


def _completion(arguments: argparse.Namespace, call: tuple[str, ...]) -> int:
    import shtab

    from draftyard.cli_words import make_parser

    print(shtab.complete(make_parser(), arguments.shell))
    return ExitCode.DONE


COMMANDS: Mapping[str, Command] = {
    "init": _init,
    "schema": _schema,
    "inspect": _inspect,
    "plan": _plan,
    "doctor": _doctor,
    "build": _build,
    "package": _build,
    "serve": _serve,
    "gateway": gateway_command,
    "verify": _verify,
    "release": release_command,
    "verify-release": verify_release_command,
    "fidelity": _fidelity,
    "calibrate": _calibrate,
    "report": _report,
    "demo-model": _demo_model,
    "completion": _completion,
}
