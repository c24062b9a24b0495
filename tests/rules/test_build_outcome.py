"""A finished build is believed only after every look at it."""

from dataclasses import replace

import pytest
from tests.fakes.engine_builds import engine_build

from draftyard.nouns.builder import Runtime
from draftyard.nouns.engine_build import BuildRemains
from draftyard.rules.build_argv import expected_build_config
from draftyard.rules.build_outcome import is_harmless, outcome_problems
from draftyard.rules.build_progress import BuildProgress, advance
from draftyard.rules.container_argv import ContainerRun, Mount, container_argv

BUILD = engine_build("medusa")
WEIGHTS = (10_000_000_000, 10_000_000_000)


def config(**changes: object) -> dict[str, object]:
    """The config of an engine that is as asked, then changed."""
    return {
        "version": "1.2.1",
        "pretrained_config": dict(BUILD.checkpoint),
        "build_config": expected_build_config(BUILD),
        **changes,
    }


GOOD = BuildRemains(0, "", {"rank0.engine": 10_200_000_000, "rank1.engine": 10_200_000_000, "config.json": 9}, config())


def words(remains: BuildRemains) -> str:
    return " | ".join(problem.message for problem in outcome_problems(BUILD, remains, WEIGHTS, "1.2.1"))


def without(name: str) -> dict[str, int]:
    return {key: value for key, value in GOOD.files.items() if key != name}


def rebuilt(**changes: object) -> BuildRemains:
    return replace(GOOD, config=config(build_config={**expected_build_config(BUILD), **changes}))


def replugged(**changes: object) -> BuildRemains:
    plugins = expected_build_config(BUILD)["plugin_config"]
    return rebuilt(plugin_config={**plugins, **changes})


def test_a_good_build_is_believed():
    assert words(GOOD) == ""
    assert words(replugged(gpt_attention_plugin="float16")) == ""


@pytest.mark.parametrize(
    ("remains", "expected"),
    [
        (replace(GOOD, files=without("rank1.engine")), "1 of 2 ranks were built: no rank1.engine"),
        (replace(GOOD, files={**GOOD.files, "rank2.engine": 5}), "belong to no rank: rank2.engine"),
        (replace(GOOD, files={**GOOD.files, "rank1.engine": 0}), "rank1.engine has 0 bytes"),
        (replace(GOOD, files={**GOOD.files, "rank0.engine": 10**9}), "the plan is cut"),
        (replace(GOOD, config=None), "no readable config.json"),
        (replace(GOOD, config=config(version="1.1.0")), "built by TensorRT-LLM 1.1.0, pinned is 1.2.1"),
        (rebuilt(speculative_decoding_mode=1), "speculative_decoding_mode is 1, asked 4"),
        (rebuilt(max_seq_len=2048), "max_seq_len is 2048, asked 8255"),
        (rebuilt(max_draft_len=0), "max_draft_len is 0, asked 63"),
        (replugged(use_paged_context_fmha=False), "use_paged_context_fmha is False, asked True"),
        (
            replace(GOOD, config=config(pretrained_config={**BUILD.checkpoint, "dtype": "bfloat16"})),
            "dtype is bfloat16",
        ),
        (
            replace(GOOD, config=config(pretrained_config={**BUILD.checkpoint, "quantization": {"quant_algo": "FP8"}})),
            "quantization.quant_algo is FP8, asked absent",
        ),
        (replace(GOOD, timed_out=True, exit_code=-15), "did not end within its time limit"),
        (replace(GOOD, out_of_host_memory=True, exit_code=-15), "more host memory than it was given"),
    ],
)
def test_what_is_wrong_is_named(remains, expected):
    assert expected in words(remains)


@pytest.mark.parametrize(
    ("code", "log", "expected"),
    [
        (-9, "", "signal 9"),
        (137, "", "signal 9"),
        (1, "RuntimeError: CUDA out of memory. Tried to allocate 16.00 GiB", "the GPU's memory is too small"),
        (1, "write failed: No space left on device", "the disk is full"),
        (2, "trtllm-build: error: unrecognized arguments: --x 1", "does not know an option"),
        (1, "AssertionError: Engine building failed, please check the error log.", "Engine building failed"),
        (3, "", "exit code 3"),
    ],
)
def test_the_cause_comes_first(code, log, expected):
    assert expected in words(replace(GOOD, exit_code=code, log=log)).split(" | ")[0]


def test_a_harmless_warning_is_never_the_cause():
    """TensorRT-LLM#489: a note about the timing cache was the last readable line before a kill."""
    log = "[TRT-LLM] [W] Could not read timing cache\n"
    first, second = words(replace(GOOD, exit_code=-9, log=log)).split(" | ")
    assert "signal 9" in first
    assert second.startswith("harmless warning")
    assert is_harmless("Option --gather_generation_logits is deprecated")


def test_a_killed_build_tells_which_ranks_were_finished():
    assert "rank0.engine finished" in words(replace(GOOD, exit_code=-9, files=without("rank1.engine")))


def test_progress_follows_the_log():
    progress = BuildProgress(ranks=2)
    shares = []
    for line in (
        "[I] Loading weights from checkpoint rank 0",
        "[I] Build TensorRT engine Unnamed Network 0",
        "transformer/layers/3/attention",
        "what nobody knows",
        "[I] Engine serialized. Total time: 00:00:01",
        "[I] Loading weights from checkpoint rank 1",
        "[I] Engine serialized. Total time: 00:00:01",
        "Build phase peak memory: 2048.00 MB, children: 16.00 MB",
        "Total time of building all engines: 00:01:10",
    ):
        progress = advance(progress, line)
        shares.append(progress.share)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.025, 1.0)
    assert progress.peak_memory_bytes == 2064 << 20
    assert progress.total_time == "00:01:10"
    assert "layer 3" in advance(BuildProgress(1), "transformer/layers/3/mlp").words


RUN = ContainerRun(
    image="tritonserver@sha256:0",
    gpu_uuids=("GPU-a", "GPU-b"),
    mounts=(Mount("/data/checkpoint", "/in", False), Mount("/data/staging", "/out", True)),
    user="1000:1000",
)


def test_docker_pins_gpus_by_identity_and_has_no_network():
    argv = container_argv(Runtime.DOCKER, RUN, ("trtllm-build", "--workers", "1"))
    assert argv[argv.index("--gpus") + 1] == '"device=GPU-a,GPU-b"'
    assert argv[argv.index("--network") + 1] == "none"
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--volume"] == [
        "/data/checkpoint:/in:ro",
        "/data/staging:/out:rw",
    ]
    assert argv[-5:] == ("--entrypoint", "trtllm-build", "tritonserver@sha256:0", "--workers", "1")


def test_podman_and_enroot_spell_the_same():
    podman = container_argv(Runtime.PODMAN, RUN, ("trtllm-build",))
    assert [podman[at + 1] for at, word in enumerate(podman) if word == "--device"] == [
        "nvidia.com/gpu=GPU-a",
        "nvidia.com/gpu=GPU-b",
    ]
    enroot = container_argv(Runtime.ENROOT, RUN, ("trtllm-build",))
    assert "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b" in enroot
    assert enroot[-2:] == ("tritonserver@sha256:0", "trtllm-build")
    assert container_argv(Runtime.HOST, RUN, ("trtllm-build",)) == ("trtllm-build",)
