"""How results are printed: one option for the format of all tables."""

from collections.abc import Iterable
from typing import Annotated

import typer

from perdure.cli.options import note, stdout
from perdure.report.table import FORMATS, Table, as_text, check_format

Format = Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="How tables are printed.")]


class Page:
    """Standard output in one format. What is no table goes to standard error where the format is for other programs."""

    def __init__(self, form: str) -> None:
        self.form = check_format(form)
        self.empty = True

    def tables(self, parts: Iterable[Table | str]) -> None:
        """Tables, and lines that say how to read them."""
        for part in parts:
            if self.form == "table":
                stdout.print(part)
            elif text := as_text([part], self.form):
                stdout.file.write(text if self.empty else f"\n{text}")
                self.empty = False

    def gap(self) -> None:
        """An empty line; other formats set tables apart by themselves."""
        if self.form == "table":
            stdout.print()

    def say(self, line: str) -> None:
        """A line as it is, such as the path of a file."""
        if self.form == "table":
            stdout.print(line, soft_wrap=True)
        else:
            note(line)
