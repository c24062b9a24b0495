"""What people see: tables and JSON on stdout, progress and findings on stderr."""

import json
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftyard.nouns.blueprint import Step
from draftyard.nouns.digest import Json

if TYPE_CHECKING:
    # Bars are shown by builds on a terminal alone.
    from rich.progress import Progress, TaskID

_PIPE_WIDTH = 200


def print_json(value: Json) -> None:
    """One JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table on stdout; wide when stdout is no terminal, so that nothing is cut for the next program."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def tell(words: str) -> None:
    """One line for people, on stderr."""
    print(words, file=sys.stderr, flush=True)


def size_words(size_bytes: int) -> str:
    """Bytes in the unit that gives short numbers."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


class PlainWatcher:
    """A line on stderr for each step that exists; for pipes and logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def started(self, step: Step) -> None:
        """Says what is being made."""
        self.told(f"making {step.label}")

    def progressed(self, step: Step, share: float, words: str) -> None:
        """Shares fill no log."""

    def finished(self, step: Step, made: bool, seconds: float) -> None:
        """`built` or `have`, and the seconds it took."""
        self.told(f"built  {step.label}  {seconds:.1f} s" if made else f"have   {step.label}")

    def told(self, words: str) -> None:
        """One line."""
        with self._lock:
            tell(words)


class BarWatcher:
    """A bar on the terminal for each step that runs."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def started(self, step: Step) -> None:
        """A new bar."""
        self._bars[step.key] = self._progress.add_task(step.label, total=1.0)

    def progressed(self, step: Step, share: float, words: str) -> None:
        """Moves the bar."""
        self._progress.update(self._bars[step.key], completed=share)

    def finished(self, step: Step, made: bool, seconds: float) -> None:
        """The bar gives way to a line."""
        if step.key in self._bars:
            self._progress.remove_task(self._bars.pop(step.key))
        self.told(f"built  {step.label}  {seconds:.1f} s" if made else f"have   {step.label}")

    def told(self, words: str) -> None:
        """A line above the bars."""
        self._progress.console.print(words, highlight=False, markup=False)


def progress_bars() -> "Progress":
    """Bars on stderr; to be entered as a context."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
