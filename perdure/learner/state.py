"""The directory of a learner: revisions that are written once and never changed, and a head that names one of them.

STATE/
    head.json                         which revision is in use
    revisions/003/state.json          tasks, classes, normalization, method and values, network, verdict
    revisions/003/model.safetensors   weights, heads, statistics, bases

A revision is written beside the others and renamed when it is whole; then the head is replaced. Whoever is killed at
any moment leaves the one revision in use or the other.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, model_validator
from torch import Tensor

from perdure.errors import CorruptFile, MissingFile, PerdureError, WrongValue
from perdure.lab.saved import Count, Saved, Sum, Time
from perdure.lab.store import file_sum, lock_run, now, read_checked, sync_folder, write_checked
from perdure.lab.tensor_file import read_tensors, write_tensors

SCHEMA = 1
MODEL, STATE = "model.safetensors", "state.json"
MOST = 10**6  # revisions, tasks, classes

Name = Annotated[str, Field(min_length=1, max_length=500)]
Size = Annotated[list[Count], Field(min_length=2, max_length=2)]
Verdict = Literal["passed", "broken", "not verified"]


class SavedHead(Saved):
    """head.json"""

    schema_: Annotated[int, Field(alias="schema")]
    revision: Annotated[int, Field(ge=1, le=MOST)]
    latest: Annotated[int, Field(ge=1, le=MOST)]  # the highest number that was given

    @model_validator(mode="after")
    def _check_order(self) -> "SavedHead":
        if self.revision > self.latest:
            raise ValueError("a revision after the latest")
        return self


class SavedTask(Saved):
    """One task, as far as it is not in the tensors."""

    name: Name
    classes: list[Name]
    mean: list[FiniteFloat]
    std: list[Annotated[FiniteFloat, Field(gt=0)]]
    images: Count  # that it was trained on
    revision: Count  # in which it was learned
    protected: bool
    forgotten: bool = False
    valid_accuracy: FiniteFloat | None = None
    basis: dict[str, Size] = Field(default_factory=dict)  # layer → directions held and there are, after it
    membership: dict[str, FiniteFloat] = Field(
        default_factory=dict
    )  # layer → AUC of telling training images from others by the basis
    threshold: FiniteFloat | None = None  # the largest distance at which an image is taken to be of this task


class SavedNetwork(Saved):
    """How the network was made; the code of the user's own is not kept."""

    name: Name | None  # in the registry, or FILE.py:NAME
    head: str | None = None  # of a wrapped module
    keep_head: bool = False
    free: list[str] = Field(default_factory=list)
    structure: dict[str, list[int]]  # parameter or buffer → shape


class SavedLearner(Saved):
    """state.json"""

    schema_: Annotated[int, Field(alias="schema")]
    revision: Annotated[int, Field(ge=1, le=MOST)]
    parent: Count
    why: str  # what made it, e.g. learn 2026-11
    made: Time
    method: Name
    values: dict[str, Any]
    plan: dict[str, Any]
    network: SavedNetwork
    input: Annotated[list[Annotated[int, Field(ge=1, le=2**16)]], Field(min_length=3, max_length=3)]
    mean: list[FiniteFloat] | None = None  # of all tasks, where it is given
    std: list[FiniteFloat] | None = None
    tasks: list[SavedTask]
    verdict: Verdict
    checks: list[dict[str, Any]] = Field(default_factory=list)
    inference: dict[str, Any] | None = None  # how well tasks were told apart when it was last measured
    files: dict[str, Sum]

    @model_validator(mode="after")
    def _check_tasks(self) -> "SavedLearner":
        channels = self.input[0]
        for task in self.tasks:
            if len(task.mean) not in (1, channels) or len(task.std) not in (1, channels):
                raise ValueError(f"mean and std of task {task.name}")
        names = [task.name for task in self.tasks if not task.forgotten]
        if len(set(names)) < len(names):
            raise ValueError("two tasks of one name")
        return self


class TensorHeader(Saved):
    """What stands in the header of the tensors' file."""

    remembered: dict[str, Any]
    sums: dict[str, int]


class StateDirectory:
    """Reads and writes revisions."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # --- reading ---

    def exists(self) -> bool:
        return (self.path / "head.json").exists() or (self.path / "revisions").exists()

    def head(self) -> SavedHead:
        file = self.path / "head.json"
        if not file.exists():
            raise MissingFile(f"{self.path}: no learner is there; make one with Learner.create or `perdure learn`")
        return read_checked(file, SavedHead, "the head of a learner", SCHEMA)

    def revision(self, number: int) -> SavedLearner:
        """What a revision says; its tensors are looked at as bytes only."""
        folder = self.folder(number)
        found = read_checked(folder / STATE, SavedLearner, "a revision of a learner", SCHEMA)
        if found.revision != number:
            raise CorruptFile(f"{folder / STATE}: of revision {found.revision}, not {number}", folder / STATE)
        if file_sum(folder / MODEL) != found.files.get(MODEL):
            raise CorruptFile(f"{folder / MODEL}: damaged or gone, its checksum is not the one written", folder / MODEL)
        return found

    def tensors(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a revision, and what else its method remembers."""
        found, facts = read_tensors(self.folder(number) / MODEL, TensorHeader, "a model")
        return found, facts["remembered"]

    def numbers(self) -> list[int]:
        """All revisions there are."""
        latest = self.head().latest
        found = (path.name for path in (self.path / "revisions").iterdir() if path.is_dir())
        return sorted(number for name in found if re.fullmatch("[0-9]{3,7}", name) and (number := int(name)) <= latest)

    def folder(self, number: int) -> Path:
        return self.path / "revisions" / f"{number:03d}"

    # --- writing ---

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes it."""
        with lock_run(self.path, self.path / "state"):
            yield

    def commit(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor], remembered: Mapping[str, Any]) -> int:
        """Write a new revision and make it the one in use; returns its number."""
        number = self.head().latest + 1 if (self.path / "head.json").exists() else 1
        if number > MOST:
            raise PerdureError(f"{self.path}: no more revisions can be numbered; begin a new state")
        place = self.path / "revisions"
        part, folder = place / f".{number:03d}.part", self.folder(number)
        for left in (part, folder):  # by a process that was killed before the head was replaced
            shutil.rmtree(left, ignore_errors=True)
        write_tensors(part / MODEL, tensors, {"remembered": remembered})
        sums = {MODEL: file_sum(part / MODEL)}
        about = {"schema": SCHEMA, **content, "revision": number, "made": now(), "files": sums}
        write_checked(part / STATE, about)
        try:
            part.rename(folder)
            sync_folder(place)
        except OSError as error:
            raise PerdureError(f"cannot write {folder}: {error.strerror}; nothing was changed") from None
        self.point_to(number, number)
        return number

    def point_to(self, revision: int, latest: int | None = None) -> None:
        write_checked(
            self.path / "head.json",
            {"schema": SCHEMA, "revision": revision, "latest": self.head().latest if latest is None else latest},
        )

    def remove(self, numbers: list[int]) -> None:
        """For good."""
        if self.head().revision in numbers:
            raise WrongValue("the revision in use is not removed")
        for number in numbers:
            shutil.rmtree(self.folder(number))

    def files(self) -> dict[str, int]:
        """Every file below, with its bytes."""
        return {
            str(path.relative_to(self.path)): path.lstat().st_size
            for path in sorted(self.path.rglob("*"))
            if path.is_file() or path.is_symlink()
        }
