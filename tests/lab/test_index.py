"""The runs of a store: all listed, none read twice, found by a few letters, removed with care."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from finished_runs import finish_run

from perdure.errors import PerdureError, RunLocked, UnknownName, WrongValue
from perdure.lab import index, store
from perdure.lab.run import run_spec
from perdure.lab.spec import spec
from perdure.lab.study import StudyRun


def finished(root: Path, digest: str, method: str = "gpm", benchmark: str = "six", **facts: Any) -> Path:
    """A finished run as the store leaves it."""
    names = {"method": method, "benchmark": benchmark}
    figures = {"accuracy_matrix": [[85.0], [80.0, 80.0]], "acc": 80.0, "bwt": -2.5, "seconds": 3.0}
    path = store.run_directory(root, benchmark.replace(":", "-"), method, digest)
    return finish_run(path, {**names, **figures, **facts})


def unfinished(root: Path, digest: str, text: str = 'method = "er"\nbenchmark = "six"\nseed = 4\ntasks = 3\n') -> Path:
    path = store.run_directory(root, "six", "er", digest)
    (path / "checkpoint").mkdir(parents=True)
    (path / "spec.toml").write_text(text)
    return path


A, B, C, D = "aaaa000000000001", "aaab000000000002", "bbbb000000000003", "cccc000000000004"


def by_digest(root: Path) -> dict[str, index.RunSummary]:
    return {row.digest: row for row in index.runs(root)}


def test_a_real_run_is_listed_as_its_record_says(tmp_path: Path) -> None:
    record = run_spec(spec("gpm", "synthetic", tasks=2, plan={"epochs": 1}), out=tmp_path)
    (row,) = index.runs(tmp_path)
    assert tmp_path / row.path == Path(record["path"])
    assert row.state == "finished"
    for name in ("method", "benchmark", "network", "seed", "tasks", "acc", "bwt", "seconds"):
        assert getattr(row, name) == record[name]
    assert record["finished"].endswith("Z")
    assert row.finished == datetime.fromisoformat(record["finished"]).timestamp()
    assert row.finished == pytest.approx(time.time(), abs=60)


def test_when_a_run_was_finished_is_in_its_record_and_for_older_ones_the_time_of_the_file(tmp_path: Path) -> None:
    path, older = finished(tmp_path, A) / "record.json", finished(tmp_path, B) / "record.json"
    record = json.loads(older.read_text())
    del record["finished"]
    store.write_json(older, {**record, "check": store._check(record)})
    for file in (path, older):
        os.utime(file, (1e9, 1e9))
    rows = by_digest(tmp_path)
    assert rows[B].finished == 1e9
    assert rows[A].finished == pytest.approx(time.time(), abs=60)  # however it was copied


def test_every_state_is_told_and_nothing_else_is_listed(tmp_path: Path) -> None:
    finished(tmp_path, A)
    unfinished(tmp_path, B)
    (finished(tmp_path, C) / "record.json").write_text("{")
    newer = json.loads((finished(tmp_path, D) / "record.json").read_text()) | {"schema": store.SCHEMA + 1}
    (tmp_path / "six/gpm" / D / "record.json").write_text(json.dumps(newer))
    for other in ("six/gpm/notes", "six/gpm/dddd000000000005", ".locks/gpm/eeee000000000006", f"six/gpm/.removed-{A}"):
        (tmp_path / other).mkdir(parents=True)
    (tmp_path / "six/gpm/notes/record.json").write_text("{}")
    (tmp_path / ".locks/gpm/eeee000000000006/spec.toml").write_text("")
    (tmp_path / "six/readme.txt").write_text("not a folder")
    rows = by_digest(tmp_path)
    assert {name: row.state for name, row in rows.items()} == {A: "finished", B: "unfinished", C: "damaged", D: "newer"}
    assert (rows[B].method, rows[B].benchmark, rows[B].seed, rows[B].tasks, rows[B].acc) == ("er", "six", 4, 3, None)
    assert "run it again" in rows[C].problem
    assert str(tmp_path / "six/gpm" / C) in rows[C].problem
    assert "update" in rows[D].problem
    assert rows[A].problem is rows[B].problem is None


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_study_gave_up_is_listed_with_its_reason_and_can_be_removed(begun: bool, tmp_path: Path) -> None:
    if begun:
        unfinished(tmp_path, A)
    StudyRun(spec("er", "six", seed=4), store.run_directory(tmp_path, "six", "er", A)).save_error("no device 'cuda'")
    (row,) = index.runs(tmp_path)
    assert (row.state, row.method, row.seed) == ("failed", "er", 4)
    assert (row.problem or "").endswith("no device 'cuda'")
    index.remove_run(tmp_path, index.find_run(tmp_path, "aaaa"))
    assert index.runs(tmp_path) == []


def test_records_and_specifications_that_say_too_little(tmp_path: Path) -> None:
    path = store.run_directory(tmp_path, "six", "gpm", A)
    other = {"method": "gpm", "schema": store.SCHEMA}  # whole, but of something else
    store.write_json(path / "record.json", {**other, "check": store._check(other)})
    unfinished(tmp_path, B, "[[[")
    unfinished(tmp_path, C, "")
    (unfinished(tmp_path, D) / "spec.toml").unlink()
    rows = by_digest(tmp_path)
    assert rows[A].state == "damaged"
    assert "not a record of a run" in rows[A].problem
    for digest in (B, C, D):
        assert rows[digest][1:4] == ("unfinished", "er", "six")


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for digest in (A, B, C):
        finished(tmp_path, digest)
    (finished(tmp_path, D) / "record.json").write_text("{")
    first = index.runs(tmp_path)
    read: list[str] = []
    reader = store.read_record
    monkeypatch.setattr(store, "read_record", lambda path: (read.append(path.name), reader(path))[1])
    kept = (tmp_path / index.INDEX).stat()
    assert index.runs(tmp_path) == first
    assert read == []
    assert (tmp_path / index.INDEX).stat().st_ino == kept.st_ino  # not written when nothing changed
    finished(tmp_path, B, acc=81.5)
    (tmp_path / "six/gpm" / C / "record.json").unlink()
    finished(tmp_path, "dddd000000000005")
    rows = by_digest(tmp_path)
    assert sorted(read) == [B, "dddd000000000005"]
    assert rows[B].acc == 81.5
    assert rows[C].state == "unfinished"
    index.remove_run(tmp_path, tmp_path / "six/gpm" / A)
    assert set(by_digest(tmp_path)) == {B, C, D, "dddd000000000005"}
    assert A not in (tmp_path / index.INDEX).read_text()
    assert len(read) == 2


def change_a_digit(content: bytes) -> bytes:
    assert b"80.0" in content
    return content.replace(b"80.0", b"90.0")


def another_schema(content: bytes) -> bytes:
    body = json.dumps({**json.loads(content)["index"], "schema": [99, 99]}).replace("80.0", "90.0").encode()
    return index._HEAD % index.zlib.crc32(body) + body + b"}\n"


def another_shape(_content: bytes) -> bytes:
    body = json.dumps({"schema": index.SCHEMA, "runs": [7]}).encode()
    return index._HEAD % index.zlib.crc32(body) + body + b"}\n"


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda c: c[:-40], lambda _: b"[]", change_a_digit, another_schema, another_shape],
    ids=["empty", "cut", "list", "digit", "schema", "shape"],
)
def test_a_damaged_index_is_made_anew_in_silence(damage: Any, tmp_path: Path) -> None:
    finished(tmp_path, A)
    first = index.runs(tmp_path)
    listing = tmp_path / index.INDEX
    whole = listing.read_bytes()
    listing.write_bytes(damage(whole))
    assert index.runs(tmp_path) == first
    assert listing.read_bytes() == whole


def test_a_store_that_cannot_be_written_is_listed_all_the_same(tmp_path: Path) -> None:
    finished(tmp_path, A)
    (tmp_path / index.INDEX).mkdir()  # nothing can take its place
    assert [row.digest for row in index.runs(tmp_path)] == [A]
    assert [row.digest for row in index.runs(tmp_path)] == [A]
    assert sorted(path.name for path in tmp_path.iterdir()) == [index.INDEX, "six"]


def test_a_store_that_is_not_there_has_no_runs_and_is_not_made(tmp_path: Path) -> None:
    assert index.runs(tmp_path / "nowhere") == []
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(PerdureError, match="cannot be read"):
        index.runs(tmp_path / "file")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path, A)
    finished(tmp_path, B, "ewc")
    look = os.scandir

    def forbid(place: str) -> Any:
        if place.endswith("ewc"):
            raise PermissionError(13, "Permission denied", place)
        return look(place)

    monkeypatch.setattr(index.os, "scandir", forbid)
    rows = index.runs(tmp_path)
    assert [(row.path, row.state) for row in rows if row.problem] == [("six/ewc", "damaged")]
    assert [row.digest for row in rows if not row.problem] == [A]


def test_filters(tmp_path: Path) -> None:
    finished(tmp_path, A, "gpm", "six")
    finished(tmp_path, B, "rcl", "folder:pets")
    finished(tmp_path, C, "rcl", "six")
    unfinished(tmp_path, D)

    def digests(*words: str) -> list[str]:
        return sorted(row.digest for row in index.runs(tmp_path, words))

    assert digests() == [A, B, C, D]
    assert digests("rcl") == [B, C]
    assert digests("rcl", "six") == [C]
    assert digests("gpm", "rcl") == [A, B, C]
    assert digests("folder") == digests("folder:pets") == digests("folder-pets") == [B]
    assert digests("unfinished") == [D]
    assert digests("ewc") == []  # known, but there is none
    with pytest.raises(UnknownName, match="did you mean rcl"):
        digests("rlc")


def test_they_come_by_benchmark_method_and_seed(tmp_path: Path) -> None:
    for digest, seed in ((A, 10), (B, 9), (C, 1)):
        finished(tmp_path, digest, seed=seed)
    finished(tmp_path, D, "ewc", seed=50)
    assert [row.digest for row in index.runs(tmp_path)] == [D, C, B, A]


def test_a_run_is_found_by_path_or_by_the_beginning_of_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    path = finished(root, A)
    finished(root, B)
    waiting = unfinished(root, C)
    assert index.find_run(root, str(path)) == path
    assert index.find_run(root, f"six/gpm/{A}") == path
    assert index.find_run(root, "aaaa") == index.find_run(root, A) == path
    assert index.find_run(root, "b") == waiting
    monkeypatch.chdir(path.parent)
    assert index.find_run(root, A) == Path(A)  # where one stands
    for name in ("aa", "a"):
        with pytest.raises(WrongValue, match=f"2 runs begin with '{name}'.*write more of the hash"):
            index.find_run(root, name)
    for name in ("f", "", "six", "aaa/", str(tmp_path), f"{A}0"):
        with pytest.raises(WrongValue, match="no run"):
            index.find_run(root, name)


def test_removing_leaves_nothing_but_the_others(tmp_path: Path) -> None:
    path, other = finished(tmp_path, A), finished(tmp_path, B)
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    (path / "link").symlink_to(kept)
    left = path.with_name(f".removed-{A}")  # by one that was killed
    (left / "probes").mkdir(parents=True)
    index.remove_run(tmp_path, path)
    assert not path.exists()
    assert not left.exists()
    assert kept.read_text() == "mine"
    assert store.read_record(other, thorough=True)
    index.remove_run(tmp_path, other)
    assert not (tmp_path / "six").exists()
    assert index.runs(tmp_path) == []


def test_what_is_no_run_of_the_store_is_not_removed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    mine, foreign = finished(root, A), finished(elsewhere, B)
    (root / "linked").symlink_to(elsewhere / "six")
    (mine.parent / C).symlink_to(foreign)
    (mine.parent / D).mkdir()
    (mine.parent / D / "letters.txt").write_text("not a run")
    deep = mine / "probes" / B
    deep.mkdir(parents=True)
    (deep / "spec.toml").write_text("")
    for path in (
        foreign,
        root / "linked/gpm" / B,
        mine.parent / C,
        mine.parent / D,
        mine.parent,
        root,
        deep,
        root / "six/../../elsewhere/six/gpm" / B,
        root / "six/gpm/dddd000000000005",
    ):
        with pytest.raises(WrongValue, match=r"not a run|a link|not the directory of a run"):
            index.remove_run(root, path)
    assert store.read_record(mine, thorough=True)
    assert store.read_record(foreign, thorough=True)
    assert (mine.parent / D / "letters.txt").exists()


def test_a_store_behind_a_link_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = finished(tmp_path / "disk", A)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path)
    index.remove_run(Path("runs"), index.find_run(Path("runs"), "aaaa"))
    assert not path.exists()


def test_a_run_that_is_being_worked_on_is_not_removed(tmp_path: Path) -> None:
    path = unfinished(tmp_path, A)
    with store.lock_run(tmp_path, path), pytest.raises(RunLocked, match="at work"):
        index.remove_run(tmp_path, path)
    assert (path / "spec.toml").exists()
    index.remove_run(tmp_path, path)
    assert not path.exists()


def test_no_torch() -> None:
    code = "import sys, perdure.lab.index; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_record_that_is_removed_in_this_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path, "aaaa000000000001")
    monkeypatch.setattr(store, "read_record", lambda _: None)
    (row,) = index.runs(tmp_path)
    assert row == index.RunSummary("six/gpm/aaaa000000000001", "unfinished", "gpm", "six")
