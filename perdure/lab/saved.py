"""What the files of a store hold. Anybody may have written them: whatever is read is checked by one of these forms.

Keys that are not listed are kept as they are: other versions wrote them, or will. No torch here.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from perdure.data.paths import one_line
from perdure.errors import CorruptFile


def _check_file_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ValueError("not the name of a file in this folder")
    return name


def _check_rows(rows: list[list[float]]) -> list[list[float]]:
    """A row per lesson: each brings a task or more, and none is forgotten."""
    lengths = [len(row) for row in rows]
    if lengths != sorted(lengths) or any(length <= place for place, length in enumerate(lengths)):
        raise ValueError("not an accuracy matrix")
    return rows


def _check_time(text: str) -> str:
    try:
        datetime.fromisoformat(text).timestamp()
    except OverflowError:
        raise ValueError("not a time") from None
    return text


Name = Annotated[str, Field(max_length=5000)]  # folder:PATH may be long
FileName = Annotated[str, AfterValidator(_check_file_name)]
Sum = Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
Count = Annotated[int, Field(ge=0)]
Rows = Annotated[list[list[FiniteFloat]], AfterValidator(_check_rows)]
Time = Annotated[str, AfterValidator(_check_time)]
OwnKind = Annotated[str, Field(pattern="^(method|network|benchmark|augmentation .+)$")]


class Saved(BaseModel):
    """Part of a file, or all of it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


S = TypeVar("S", bound=Saved)


def check(form: type[S], content: Any, file: Path, what: str) -> S:
    """The content of a file by its form. Raises CorruptFile, which says what it is not, and why."""
    try:
        return form.model_validate(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"])) or "all of it"
        raise CorruptFile(f"{file}: not {what} ({one_line(where)[:100]}: {wrong['msg'].lower()})", file) from None


# --- what was asked for ---


class SavedSpec(Saved):
    """spec.toml, as far as listings read it; a run itself is only ever asked for by its user."""

    method: Name | None = None
    benchmark: Name | None = None
    network: Name | None = None
    seed: Count | None = None
    tasks: Count | None = None
    outliers: Name | None = None


class SavedFailure(SavedSpec):
    """failed.json"""

    error: str = "not said why"


# --- what came of it ---


class OwnCode(Saved):
    where: str
    checksum: str


class Versions(Saved):
    perdure: str
    torch: str


class SavedRecord(Saved):
    """record.json"""

    method: Name
    benchmark: Name
    network: Name
    seed: Count
    tasks: Count | None
    values: dict[str, Any]
    plan: dict[str, Any]
    settings: dict[str, Any]
    judged_on: Literal["test", "valid"] = "test"
    outliers: Name = ""
    code: dict[OwnKind, OwnCode] = {}
    format: int
    task_names: list[str]
    data: dict[str, Any]
    acc: FiniteFloat
    bwt: FiniteFloat | None
    learning_accuracy: FiniteFloat | None
    forgetting: FiniteFloat | None
    accuracy_matrix: Annotated[Rows, Field(min_length=1)]
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    evaluation_seconds: Annotated[FiniteFloat, Field(ge=0)] | None = None
    memory_bytes: dict[str, FiniteFloat]
    facts: dict[str, Any]
    versions: Versions
    device: str
    threads: Annotated[int, Field(ge=1, lt=2**31)]
    cautions: list[str]
    finished: Time | None = None  # records of earlier versions do not say
    files: dict[FileName, Sum]

    @model_validator(mode="after")
    def _check_tasks(self) -> "SavedRecord":
        if len(self.task_names) != len(self.accuracy_matrix[-1]):
            raise ValueError("as many names of tasks as accuracies are needed")
        return self


class Budget(Saved):
    """What a record's facts say of a memory budget."""

    bytes: FiniteFloat
    precision: str
    wanted: FiniteFloat
    protected: dict[str, FiniteFloat]


class SavedProbe(Saved):
    """probes/NAME.json; the figures besides are the probe's own."""

    probe: Name
    values: dict[str, Any]
    headline: dict[str, FiniteFloat | None]
    arrays: dict[str, list[int]]
    arrays_sum: str
    models: list[str]


# --- while it is made ---


class SavedScore(Saved):
    model_config = ConfigDict(extra="forbid")

    loss: float
    accuracy: FiniteFloat
    samples: Count


class SavedEpoch(Saved):
    """A line of epochs.jsonl, and an epoch in a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    lesson: Count
    epoch: Count
    rate: FiniteFloat
    valid: SavedScore
    train: SavedScore | None
    best: bool
    seconds: FiniteFloat


class SavedEpochs(Saved):
    epochs: list[SavedEpoch]


class SavedRunning(Saved):
    model_config = ConfigDict(extra="forbid")

    loss: float
    hits: Annotated[int, Field(ge=0, lt=2**63)]
    samples: Count


class SavedFit(Saved):
    """Where a lesson stands, less its tensors."""

    model_config = ConfigDict(extra="forbid")

    lesson: Count
    epoch: Count
    batches: Count
    seconds: FiniteFloat
    running: SavedRunning
    history: list[SavedEpoch]
    schedule: dict[str, Any]


class CheckpointHeader(Saved):
    """The JSON in the header of a checkpoint."""

    digest: str
    remembered: dict[str, Any]
    matrix: Rows
    epochs: list[SavedEpoch]
    seconds: FiniteFloat
    evaluation_seconds: FiniteFloat = 0.0  # earlier versions did not count them
    fit_state: SavedFit | None
    threads: int
    sums: dict[str, int]

    @model_validator(mode="after")
    def _check_lesson(self) -> "CheckpointHeader":
        if self.fit_state is not None and self.fit_state.lesson != len(self.matrix):
            raise ValueError("the lesson at hand is not the one after the last row of the matrix")
        return self
