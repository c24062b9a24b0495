#!/usr/bin/env python3
"""Stands in for nvidia-smi: lists the GPUs that FAKE_GPUS names, separated by semicolons; fails with FAKE_SMI_FAILS."""

import os
import sys

if os.environ.get("FAKE_SMI_FAILS"):
    print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    sys.exit(9)
MEMORY_MIB = {"NVIDIA H100 80GB HBM3": 81559, "NVIDIA H200": 143771}
CAPABILITY = os.environ.get("FAKE_COMPUTE", "9.0")
for number, name in enumerate(filter(None, os.environ.get("FAKE_GPUS", "").split(";"))):
    print(f"{name}, GPU-{number:08x}, {MEMORY_MIB.get(name, 40960)}, 580.95.05, {CAPABILITY}, Disabled")
