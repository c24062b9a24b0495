"""Memory of one device: parts, the word for their sum, and how many requests the cache holds."""

from dataclasses import replace

import pytest
from tests.fakes.forecast_cases import LLAMA_1B, LLAMA_8B, LLAMA_70B, circumstances

from draftyard.nouns.gpu import Gpu
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.network import Network, Precision
from draftyard.nouns.prediction import Fit, MemoryForecast
from draftyard.rules.predict.device_memory import PARTS, TIGHT_SHARE
from draftyard.rules.predict.memory_parts import weight_bytes
from draftyard.rules.predict.variant_case import variant_case
from draftyard.rules.predict.variant_forecast import forecast_variant


def memory(
    network: Network = LLAMA_70B,
    gpu: Gpu = Gpu.H100_SXM,
    precision: Precision = Precision.FP8,
    tp: int = 2,
    *,
    draft: Network | None = None,
    drafted: int = 4,
    limits: str = "",
) -> MemoryForecast:
    kind = SpeculatorKind.DRAFT_TARGET if draft else SpeculatorKind.NONE
    case = circumstances(network, gpu, precision, tp, kind=kind, draft=draft, draft_length=drafted, limits=limits)
    return forecast_variant(variant_case(case)).memory


def size(found: MemoryForecast, part: str) -> float:
    return sum(one.size_bytes for one in found.parts if one.part == part)


def limits(batch: int, longest: int, step: int = 8192) -> str:
    return f"max_batch_size: {batch}, max_input_len: {longest // 2}, max_seq_len: {longest}, max_num_tokens: {step}"


def test_parts_sum_to_the_whole_and_have_known_names() -> None:
    found = memory(draft=LLAMA_1B)
    assert {part.part for part in found.parts} <= set(PARTS)
    assert sum(part.size_bytes for part in found.parts) == pytest.approx(found.total.value)
    assert found.total.low < found.total.value < found.total.high
    assert all(part.formula for part in found.parts)


def test_fp8_keeps_embeddings_and_head_in_16_bit() -> None:
    place = variant_case(circumstances(LLAMA_8B, Gpu.H200_SXM, Precision.FP8, 1)).at.place
    matrices, tables = weight_bytes(place)
    assert matrices == place.shape.linear_weights
    assert tables == 2 * 2 * 128256 * 4096


def test_usable_bytes_are_what_the_device_reports() -> None:
    """85.5e9 bytes on the 80 GB part, 150.8e9 on the 141 GB part: nominal sizes would cost 5 to 9 GB of cache."""
    assert memory(gpu=Gpu.H100_SXM).usable_bytes == 85_520_809_984
    assert memory(gpu=Gpu.H200_SXM).usable_bytes == 150_754_820_096


@pytest.mark.parametrize(
    ("batch", "longest", "word"), [(8, 4096, Fit.FITS), (56, 4096, Fit.TIGHT), (128, 4096, Fit.DOES_NOT_FIT)]
)
def test_words(batch: int, longest: int, word: Fit) -> None:
    found = memory(limits=limits(batch, longest))
    assert found.fit is word
    assert found.usable_bytes is not None
    share = found.total.value / found.usable_bytes
    assert (share <= TIGHT_SHARE, share <= 1.0) == (word is Fit.FITS, word is not Fit.DOES_NOT_FIT)


def test_16_bit_weights_of_70b_leave_little_on_two_devices() -> None:
    """70.6 GB of weights and 3 GB of context on 85.5 GB: 16 requests of 4,096 tokens do not fit, 4 do."""
    assert memory(precision=Precision.FP16, limits=limits(16, 4096)).fit is Fit.DOES_NOT_FIT
    assert memory(precision=Precision.FP16, limits=limits(4, 4096)).fit is not Fit.DOES_NOT_FIT
    assert memory(precision=Precision.FP16, tp=1).fit is Fit.DOES_NOT_FIT


def test_a_draft_brings_weights_cache_and_slots() -> None:
    plain, drafted, longer = memory(), memory(draft=LLAMA_1B), memory(draft=LLAMA_1B, drafted=8)
    assert size(plain, "draft weights") == size(plain, "draft slots and logits") == 0
    assert size(drafted, "draft weights") > 1e9
    # A token of the draft keeps 2 x 16 layers x 4 heads x 128 elements, one of the target 2 x 80 x 8 x 128 on two.
    assert size(drafted, "draft KV cache") / size(drafted, "KV cache") == pytest.approx(
        2 * 16 * 4 * 128 * 2 / (2 * 80 * 8 * 128 * 2 / 2), rel=0.1
    )
    assert size(longer, "draft slots and logits") == pytest.approx(2 * size(drafted, "draft slots and logits"))
    assert longer.total.value > drafted.total.value > plain.total.value


def test_logits_of_a_tree_after_the_published_example() -> None:
    """64 nodes x 64 requests x 128 K words x 4 bytes are 2.1 GB."""
    found = memory(draft=LLAMA_1B, drafted=64, limits=limits(64, 4096))
    slots = 64 * 64 * (2 * 80 * 8 * 128 * 2 / 2)
    assert size(found, "draft slots and logits") - slots == pytest.approx(2.1e9, rel=0.01)


def test_the_cache_holds_what_is_left() -> None:
    roomy = memory(gpu=Gpu.H200_SXM, limits=limits(16, 4096))
    assert roomy.sequences == roomy.sequences_plain == 16
    tight = memory(limits=limits(256, 8192), draft=LLAMA_1B)
    assert 0 < tight.sequences < tight.sequences_plain < 256
    # Asked for 256 x 8,192 tokens, the pool is cut to what the device has.
    assert tight.pool_tokens < 256 * 8192
    none = memory(precision=Precision.FP16, tp=1)
    assert none.sequences == none.sequences_plain == none.pool_tokens == 0


def test_chunks_bound_activations() -> None:
    small, large = memory(limits=limits(8, 4096, 2048)), memory(limits=limits(8, 4096, 16384))
    assert size(large, "activations") == pytest.approx(8 * size(small, "activations"))
    assert size(large, "weights") == size(small, "weights")


def test_more_devices_hold_less_each_but_copy_heads() -> None:
    sizes = [memory(tp=tp, limits=limits(8, 4096)).total.value for tp in (2, 4, 8)]
    assert sizes[0] > sizes[1] > sizes[2]
    few = replace(LLAMA_70B, kv_heads=2)
    assert size(memory(few, tp=8), "KV cache") == size(memory(few, tp=2), "KV cache")
