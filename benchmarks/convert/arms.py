"""One arm in a process of its own, so that its peak memory is its own: copy, draftyard or transformers."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from draftyard.nouns.blueprint import Step, StepKind
from draftyard.nouns.network import Precision
from draftyard.rules.trtllm import checkpoint_config
from draftyard.verbs.convert import make_checkpoint
from draftyard.verbs.inspect import inspect
from draftyard.verbs.making import Workplace


def synchronised(directory: Path) -> None:
    """Everything on the disk: a write counts when it is there."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def copy(source: Path, target: Path) -> float:
    """A plain copy of every shard; seconds."""
    began = time.perf_counter()
    for path in sorted(source.glob("*.safetensors")):
        shutil.copyfile(path, target / path.name)
    synchronised(target)
    return time.perf_counter() - began


def draftyard(source: Path, target: Path, cache: Path, tp_size: int) -> float:
    """bfloat16 to float16, cut for `tp_size` ranks; the source's hash is known from planning, as in a build."""
    found = inspect(source, cache)
    config = checkpoint_config(found.network, Precision.FP16, tp_size, 1)
    step = Step(StepKind.CHECKPOINT, "c", {"role": "target", "config": config}, (found.digest,), {}, (str(source),))
    workplace = Workplace(target, lambda key: Path(key), (source,), lambda share, words: None)
    began = time.perf_counter()
    make_checkpoint(step, workplace)
    return time.perf_counter() - began


def transformers(source: Path, target: Path) -> float:
    """Load in float16 and save, the way one converts without a converter; imports are not counted."""
    import torch
    from transformers import AutoModelForCausalLM

    began = time.perf_counter()
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16).save_pretrained(target)
    synchronised(target)
    return time.perf_counter() - began


def peak_rss_bytes() -> int:
    """The most this process held; getrusage would count what its parent held when it started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def main(arm: str, source: Path, target: Path, cache: Path, tp_size: int) -> None:
    """Run one arm and print a JSON object: seconds, and bytes of memory at the peak."""
    target.mkdir()
    if arm == "copy":
        seconds = copy(source, target)
    elif arm == "draftyard":
        seconds = draftyard(source, target, cache, tp_size)
    else:
        seconds = transformers(source, target)
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak_rss_bytes()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5]))
