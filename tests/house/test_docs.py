"""What the documents tell people to type works, what they link to is there, and generated pages are up to date."""

import re
import shlex
from pathlib import Path

import pytest
from tests.house.recipe_reference import PAGE, recipe_reference
from tests.house.source_map import ROOT, project_files, shown

from draftyard.cli import main
from draftyard.cli_commands import COMMANDS
from draftyard.cli_words import make_parser
from draftyard.rules.definitions import DEFINITIONS

README = ROOT / "README.md"
SHELLS = ("sh", "bash", "console", "shell")


def documents() -> tuple[Path, ...]:
    return tuple(path for path in project_files() if path.suffix == ".md")


def fenced_commands(text: str) -> list[list[str]]:
    """The commands of the shell blocks, one list of words each; comments, prompts and assignments are taken away."""
    found = []
    for language, body in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language in SHELLS:
            for line in body.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    words = shlex.split(part.strip().removeprefix("$ "), comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words = words[1:]
                    if words:
                        found.append(words)
    return found


def make_targets() -> set[str]:
    rules = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return {name for rule in rules for name in rule.split()}


def problem_of(words: list[str]) -> str:
    """Why a command of a document cannot be typed; empty when it can, or when it is not ours to judge."""
    if words[0] == "make":
        goals = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
        unknown = [goal for goal in goals if goal not in make_targets()]
        return f"no target {unknown}" if unknown else ""
    if Path(words[0]).name == "draftyard":
        try:
            make_parser().parse_args(words[1:])
        except SystemExit as end:
            return "" if end.code == 0 else "the command does not take these words"
    return ""


def test_commands_in_documents_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for path in documents():
        for words in fenced_commands(path.read_text(encoding="utf-8")):
            problem = problem_of(words)
            if problem:
                wrong.append(f"{shown(path)}: {' '.join(words)}: {problem}")
    capsys.readouterr()
    assert wrong == []


def test_the_readme_leads_from_a_clean_machine_to_a_verified_server() -> None:
    commands = fenced_commands(README.read_text(encoding="utf-8"))
    goals = {word for words in commands if words[0] == "make" for word in words[1:]}
    assert goals >= {"demo", "test"}
    assert any(Path(words[0]).name == "draftyard" for words in commands)


def test_a_wrong_command_would_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    text = "```sh\n$ make no-such-target  # a comment\nA=b draftyard bild \\\n  recipe.yaml\ndraftyard schema\n```\n"
    commands = fenced_commands(text)
    assert commands == [["make", "no-such-target"], ["draftyard", "bild", "recipe.yaml"], ["draftyard", "schema"]]
    assert [bool(problem_of(words)) for words in commands] == [True, True, False]
    capsys.readouterr()


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"usage: draftyard {verb}" in capsys.readouterr().out


def test_every_verb_of_the_parser_is_a_command() -> None:
    actions = [action for action in make_parser()._actions if action.dest == "command"]
    assert set(actions[0].choices or ()) == set(COMMANDS)


def test_links_lead_somewhere() -> None:
    broken = []
    for path in documents():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                broken.append(f"{shown(path)}: {target}")
    assert broken == []


def test_the_recipe_reference_is_that_of_the_schema() -> None:
    hint = "rewrite it with: PYTHONPATH=build python -m tests.house.recipe_reference"
    assert PAGE.read_text(encoding="utf-8") == recipe_reference(), hint


def test_reading_a_report_explains_every_figure() -> None:
    """The page gives the definitions that reports print, word for word."""
    text = " ".join((ROOT / "docs" / "reading-a-report.md").read_text(encoding="utf-8").split())
    assert [name for name, words in DEFINITIONS.items() if f"| {name} | {words} |" not in text] == []


def test_the_changelog_knows_this_version() -> None:
    from draftyard import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
