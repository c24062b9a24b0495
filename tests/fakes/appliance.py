"""A copy of the appliance recipes beside hollow models of the sizes they name."""

import json
import shutil
from pathlib import Path

from tests.fakes.hollow_model import CONFIGS, write_hollow_eagle, write_hollow_medusa, write_hollow_model

RECIPES = Path(__file__).resolve().parents[2] / "engines" / "recipes"
NAMES = ("llama-3.3-70b", "llama-3.1-8b", "qwen2.5-72b", "mixtral-8x7b")


def lay_out(root: Path) -> Path:
    """`engines/recipes` and `models` in `root`; returns the folder of the recipes."""
    recipes = root / "engines" / "recipes"
    recipes.mkdir(parents=True)
    for name in NAMES:
        shutil.copy(RECIPES / f"{name}.yaml", recipes)
    models = root / "models"
    for name in CONFIGS:
        write_hollow_model(models / name, name)
    write_hollow_medusa(models / "Medusa-Llama-3.3-70B", "Llama-3.3-70B-Instruct")
    write_hollow_eagle(models / "EAGLE-Llama-3.3-70B", "Llama-3.3-70B-Instruct")
    lines = [json.dumps({"text": f"w4 w5 w6 a text to calibrate with, number {index}"}) for index in range(8)]
    (models / "calibration.jsonl").write_text("\n".join(lines) + "\n")
    return recipes
