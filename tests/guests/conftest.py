"""Lets the guests' modules be imported as the server does it: each folder on the search path."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "triton_repo/models/shared",
    "triton_repo/models/preprocessing/1",
    "triton_repo/models/postprocessing/1",
    "triton_repo/models/tensorrt_llm_bls/1",
    "tests/fakes/triton_engine/1",
)
for folder in FOLDERS:
    path = str(ROOT / folder)
    if path not in sys.path:
        sys.path.append(path)
