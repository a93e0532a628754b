"""The command line as a user types it, in this process: to start another and import torch there takes seconds."""

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch

from perdure.cli.main import main


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


def perdure(*words: str, cwd: Path | None = None, columns: int = 100) -> Answer:
    """What a command prints and how it ends; threads and environment are left as they were."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    threads, code = torch.get_num_threads(), None
    with (
        patch.dict(os.environ, COLUMNS=str(columns)),
        patch.object(sys, "argv", ["perdure", *words]),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            torch.set_num_threads(threads)
    assert code is None or isinstance(code, int), code
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return Answer(code or 0, printed, said)
