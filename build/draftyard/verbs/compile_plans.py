"""Makes a TensorRT-LLM engine: starts the builder on a GPU of the right product, and believes only what it left."""

import os
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from draftyard.doors.config_files import write_config
from draftyard.doors.engine_builder import BuildBounds, BuilderProbe, probe_builder, run_builder
from draftyard.doors.tensors import free_bytes
from draftyard.nouns.blueprint import Step
from draftyard.nouns.builder import BuildDevice, Builder, Runtime
from draftyard.nouns.digest import Json
from draftyard.nouns.engine_build import BuildRemains, EngineBuild
from draftyard.nouns.errors import ExitCode, Failure, Problem, raise_problems
from draftyard.nouns.gpu import FACTS, Gpu
from draftyard.rules.build_argv import BuildPlaces, build_argv, build_options
from draftyard.rules.build_outcome import outcome_problems
from draftyard.rules.build_progress import BuildProgress, advance
from draftyard.rules.build_refusals import build_notes, build_problems
from draftyard.rules.build_request import read_build
from draftyard.rules.container_argv import ContainerRun, Mount, container_argv
from draftyard.rules.trtllm import world_size
from draftyard.verbs.making import Workplace

# Hands out a GPU of a product for the time of one build, and waits when all are busy.
Borrow: TypeAlias = Callable[[Gpu], AbstractContextManager[BuildDevice]]
FACTS_NAME = "build.json"
_INSIDE = BuildPlaces("/checkpoint", "/engine", "/engine/timing.cache")
_PLAN_SHARE = 1.15


@dataclass(frozen=True, slots=True)
class PlanMaker:
    """Compiles engines with one builder; logs go below `logs`. The step's toolchain tells which version is pinned."""

    builder: Builder
    borrow: Borrow
    logs: Path

    def make(self, step: Step, workplace: Workplace) -> tuple[str, ...]:
        """Fill the staging directory with `config.json`, one plan a rank, and what it was built with; returns notes.

        Failure before anything starts when the request is one that the builder refuses or silently changes, when the
        builder is not the pinned one, or when the disk is too small; and afterwards for any difference between what
        was asked and what is there.
        """
        image = self.builder.image or str(step.toolchain.get("triton_image", ""))
        pinned = replace(self, builder=replace(self.builder, image=image))
        return pinned._make(step, workplace)

    def _make(self, step: Step, workplace: Workplace) -> tuple[str, ...]:
        """As `make`, with the builder as it is."""
        build, version = read_build(step.parameters), str(step.toolchain["tensorrt_llm"])
        raise_problems(build_problems(build))
        checkpoint = workplace.input_path(step.inputs[0])
        weights = _rank_bytes(checkpoint, build)
        if not step.toolchain.get("rehearsal"):  # whose plans are holes
            _check_space(weights, workplace.staging)
        log_path = self.logs / f"{step.key[:16]}.log"
        with self.borrow(build.gpu) as device:
            probe = self._probe(build, device, checkpoint, workplace.staging, version)
            argv = self._argv(build, device, checkpoint, workplace.staging)
            began = time.monotonic()
            remains = self._run(argv, build, workplace, log_path)
        problems = outcome_problems(build, remains, weights, version)
        if problems:
            problems[0] = Problem(problems[0].message, f"{problems[0].hint}; log: {log_path}")
            raise_problems(problems, ExitCode.WORK_FAILED)
        facts = _facts(argv, device, probe, time.monotonic() - began)
        write_config(workplace.staging / FACTS_NAME, facts)
        return (*build_notes(build), f"$ {shlex.join(argv)}", f"log: {log_path.name}")

    def _run(self, argv: tuple[str, ...], build: EngineBuild, workplace: Workplace, log_path: Path) -> BuildRemains:
        progress = BuildProgress(world_size(build.checkpoint))

        def tell(line: str) -> None:
            nonlocal progress
            progress = advance(progress, line)
            workplace.progress(progress.share, progress.words)

        bounds = BuildBounds(self.builder.timeout_s, self.builder.memory_bytes)
        return run_builder(argv, output=workplace.staging, log_path=log_path, bounds=bounds, tell=tell)

    def _argv(self, build: EngineBuild, device: BuildDevice, checkpoint: Path, staging: Path) -> tuple[str, ...]:
        if self.builder.runtime is Runtime.HOST:
            places = BuildPlaces(str(checkpoint), str(staging), str(staging / "timing.cache"))
            # `env` keeps the choice of the GPU in the command, so that it can be pasted.
            return ("env", f"CUDA_VISIBLE_DEVICES={device.uuid}", *build_argv(build, places, self.builder.executable))
        return self._contained(device, checkpoint, staging, build_argv(build, _INSIDE, self.builder.executable))

    def _contained(
        self, device: BuildDevice, checkpoint: Path, staging: Path, command: tuple[str, ...]
    ) -> tuple[str, ...]:
        run = ContainerRun(
            image=self.builder.image,
            gpu_uuids=(device.uuid,),
            mounts=(Mount(str(checkpoint), _INSIDE.checkpoint), Mount(str(staging), _INSIDE.output, True)),
            user=f"{os.getuid()}:{os.getgid()}",
        )
        return container_argv(self.builder.runtime, run, command)

    def _probe(
        self, build: EngineBuild, device: BuildDevice, checkpoint: Path, staging: Path, version: str
    ) -> BuilderProbe:
        """Ask the builder what it is, each time: containers and installations change under a running tool."""

        def words(program: str) -> tuple[str, ...]:
            if self.builder.runtime is Runtime.HOST:
                return (program,)
            return self._contained(device, checkpoint, staging, (program,))

        probe = probe_builder(words(self.builder.executable), words(self.builder.python))
        wanted = {"checkpoint_dir", "output_dir", "output_timing_cache", "workers", *build_options(build)}
        unknown = sorted(wanted - set(probe.options))
        problems = []
        if unknown:
            listed = ", ".join(f"--{name}" for name in unknown)
            problems.append(Problem(f"the builder does not know {listed}", f"use TensorRT-LLM {version}"))
        found = probe.versions.get("tensorrt_llm")
        if found != version:
            hint = f"use TensorRT-LLM {version}, in place or in its container"
            problems.append(Problem(f"TensorRT-LLM {found} is installed, pinned is {version}", hint))
        expected = FACTS[build.gpu].compute_capability
        if device.compute_capability != expected:
            wrong = f"{device.name} has compute capability {device.compute_capability}, {build.gpu} has {expected}"
            problems.append(Problem(wrong, "build on a GPU of the recipe"))
        raise_problems(problems, ExitCode.ENVIRONMENT)
        return probe


def _rank_bytes(checkpoint: Path, build: EngineBuild) -> tuple[int, ...]:
    paths = [checkpoint / f"rank{rank}.safetensors" for rank in range(world_size(build.checkpoint))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise Failure(f"the checkpoint has no {', '.join(missing)}", "remove it from the store and build again")
    return tuple(path.stat().st_size for path in paths)


def _check_space(weights: tuple[int, ...], staging: Path) -> None:
    needed, free = int(sum(weights) * _PLAN_SHARE), free_bytes(staging)
    if free < needed:
        words = f"the engine needs about {needed} bytes, {free} are free"
        raise Failure(words, "free disk space", ExitCode.ENVIRONMENT)


def _facts(argv: tuple[str, ...], device: BuildDevice, probe: BuilderProbe, seconds: float) -> dict[str, Json]:
    return {
        "argv": list(argv),
        "compute_capability": device.compute_capability,
        "driver": device.driver,
        "gpu": device.name,
        "gpu_uuid": device.uuid,
        "seconds": round(seconds, 1),
        "versions": dict(probe.versions),
    }
