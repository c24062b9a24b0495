"""What the PyTorch backend is told, whole for each speculator."""

import pytest

from draftyard.nouns.errors import Failure
from draftyard.nouns.lane import SpeculatorKind
from draftyard.nouns.recipe import (
    DraftTargetSpeculator,
    Eagle3Speculator,
    Limits,
    LookaheadSpeculator,
    MtpSpeculator,
    NgramSpeculator,
    Speculator,
)
from draftyard.rules.llmapi_model import LlmapiPlaces, model_settings

PLACES = LlmapiPlaces("engines/tensorrt_llm/target", "engines/tensorrt_llm/speculator")
NGRAM = NgramSpeculator(kind=SpeculatorKind.NGRAM, max_draft_len=4, max_match=3)
DRAFT = DraftTargetSpeculator(kind=SpeculatorKind.DRAFT_TARGET, path="d", max_draft_len=5)
EAGLE3 = Eagle3Speculator(kind=SpeculatorKind.EAGLE3, path="e", depth=3)
MTP = MtpSpeculator(kind=SpeculatorKind.MTP, path="m", max_draft_len=2)


def settings(speculator: Speculator | None, most: int | None = None) -> dict:
    return model_settings(
        places=PLACES,
        limits=Limits(),
        speculator=speculator,
        tp_size=2,
        pp_size=1,
        kv_cache_tokens=4096,
        most_speculating=most,
    )


def test_a_plain_model_whole():
    assert settings(None) == {
        "model": "engines/tensorrt_llm/target",
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_batch_size": 8,
        "max_input_len": 1024,
        "max_seq_len": 2048,
        "max_num_tokens": 2048,
        "kv_cache_config": {"enable_block_reuse": True, "free_gpu_memory_fraction": 0.9, "max_tokens": 4096},
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }


@pytest.mark.parametrize(
    ("speculator", "expected", "overlap_off"),
    [
        (
            NGRAM,
            {
                "decoding_type": "NGram",
                "max_draft_len": 4,
                "max_matching_ngram_size": 3,
                "is_keep_all": True,
                "is_use_oldest": False,
                "is_public_pool": False,
            },
            True,
        ),
        (DRAFT, {"decoding_type": "DraftTarget", "max_draft_len": 5, "speculative_model_dir": PLACES.speculator}, True),
        (
            EAGLE3,
            {
                "decoding_type": "Eagle",
                "max_draft_len": 3,
                "speculative_model_dir": PLACES.speculator,
                "eagle3_one_model": True,
            },
            False,
        ),
        (MTP, {"decoding_type": "MTP", "num_nextn_predict_layers": 2}, False),
    ],
)
def test_each_speculator_whole(speculator, expected, overlap_off):
    found = settings(speculator)
    assert found["speculative_config"] == expected
    assert found["disable_overlap_scheduler"] is overlap_off
    assert settings(speculator, 16)["speculative_config"] == {**expected, "max_concurrency": 16}


def test_what_the_backend_does_not_execute_is_refused():
    with pytest.raises(Failure, match="does not execute lookahead"):
        settings(LookaheadSpeculator(kind=SpeculatorKind.LOOKAHEAD))
