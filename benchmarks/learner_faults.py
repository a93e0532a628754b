"""Kill learners at random moments and damage their states.

    python benchmarks/learner_faults.py [--kills 100] [--cases 500] [--requests 4000] [--seed 1]

A learner with one task learns a second and is killed with SIGKILL after a random time. It must then open with the first
revision as it was, bit for bit, or with the second one whole; learned again, it must end as one that was never killed.
Then one file of a state is damaged or rewritten in each case (cut, bits flipped, gone, a folder, a link to a device, a
pipe; facts and tensors of other types and sizes with right checksums), and must be opened as before or refused in one
line, in bounded time. Last, the service answers many requests, good and bad ones by eight clients at a time, while
other revisions are put in use; what its process holds in memory after each quarter is printed.
"""

import argparse
import asyncio
import gc
import hashlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "learner"))

from shop import PLAN, SHAPE, month, small_cnn

from perdure.errors import PerdureError
from perdure.lab.store import file_sum, write_checked
from perdure.lab.tensor_file import write_tensors
from perdure.learner.learner import Learner
from perdure.learner.state import StateDirectory

SLOWEST = 20.0  # seconds to open a state
forked = multiprocessing.get_context("fork")


def sums(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def learn_second(path: Path) -> None:
    torch.set_num_threads(1)
    Learner.open(path, small_cnn()).learn("second", month(1))


def tensors_of(path: Path, revision: int) -> dict[str, str]:
    found, _ = StateDirectory(path).tensors(revision)
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in sorted(found.items())}


def kill(first: Path, folder: Path, kills: int, chance: random.Random) -> Counter[str]:
    whole = Path(shutil.copytree(first, folder / "whole"))
    began = time.monotonic()
    learn_second(whole)
    length, expected, tally = 1.3 * (time.monotonic() - began), tensors_of(whole, 3), Counter[str]()
    while tally["killed"] < kills:
        path = Path(shutil.copytree(first, folder / "killed"))
        before = sums(path / "revisions" / "002")
        process = forked.Process(target=learn_second, args=(path,))
        process.start()
        process.join(chance.uniform(0, length))
        process.kill()
        process.join()
        tally["killed" if process.exitcode == -signal.SIGKILL else "ended before"] += 1
        opened = Learner.open(path, small_cnn())
        assert opened.revision in (2, 3), opened.revision
        assert sums(path / "revisions" / "002") == before
        tally[f"revision {opened.revision}"] += 1
        if opened.revision == 2:
            opened.learn("second", month(1))
        assert tensors_of(path, 3) == expected
        opened.rollback(2)
        assert sums(path / "revisions" / "002") == before
        shutil.rmtree(path)
    return tally


# --- damage ---


def damage(path: Path, chance: random.Random) -> str:
    """Change one file; returns how."""
    file = chance.choice(["head.json", "revisions/002/state.json", "revisions/002/model.safetensors"])
    place, how = (
        path / file,
        chance.choice(["cut", "flip", "gone", "folder", "link", "pipe", "forge", "forge", "forge"]),
    )
    content = place.read_bytes()
    if how == "forge":
        return f"{file}: {forge(path, place, chance)}"
    place.unlink()
    if how == "cut":
        place.write_bytes(content[: chance.randrange(len(content))])
    elif how == "flip":
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        place.write_bytes(changed)
    elif how == "folder":
        place.mkdir()
    elif how == "link":
        place.symlink_to(chance.choice(["/dev/zero", "/dev/full", str(place), "../../../../etc/passwd"]))
    elif how == "pipe":
        os.mkfifo(place)
    return f"{file}: {how}"


ODD: list[Any] = [None, True, -1, 0, 10**400, 1e308, "", "x", "../..", "/etc", "\ud800", [], {}, [[]], "\0", 2**63]


def forge(path: Path, place: Path, chance: random.Random) -> str:
    """Other content with right checksums."""
    if place.suffix == ".json":
        content = json.loads(place.read_text())
        content.pop("check")
        at, keys = content, list[str]()
        while isinstance(at, dict) and at:
            key = chance.choice(sorted(at))
            keys.append(key)
            if not isinstance(at[key], dict) or not at[key] or chance.random() < 0.4:
                break
            at = at[key]
        at[keys[-1]] = chance.choice(ODD)
        try:
            write_checked(place, content)
        except (UnicodeEncodeError, ValueError):
            place.write_text(json.dumps(content))
        return f"{'.'.join(keys)} = {at[keys[-1]]!r:.20}"
    tensors, remembered = StateDirectory(path).tensors(2)
    name = chance.choice(sorted(tensors))
    old = tensors[name]
    changes = {
        "nan": lambda: torch.full_like(old, torch.nan) if old.is_floating_point() else old + 1,
        "double": lambda: old.double(),
        "longer": lambda: torch.cat([old.reshape(-1), old.reshape(-1)[:1]]),
        "empty": lambda: old.reshape(-1)[:0],
        "huge": lambda: torch.zeros(1).expand(2000, 2000).contiguous(),
        "large": lambda: old * 100,
    }
    how = chance.choice(sorted(changes))
    tensors[name] = changes[how]()
    write_tensors(place, tensors, {"remembered": remembered})
    facts = json.loads((place.parent / "state.json").read_text())
    facts.pop("check")
    write_checked(place.parent / "state.json", facts | {"files": {place.name: file_sum(place)}})
    return f"{name}: {how}"


def outcome(path: Path, answers: list[Any], channel: Any) -> None:
    torch.set_num_threads(1)
    try:
        opened = Learner.open(path, small_cnn())
        same = (
            opened.tasks
            and [one.probabilities for one in opened.predict(month(0, 6)[0], opened.tasks[0].name)] == answers
        )
        channel.send("same" if same else "other content")
    except PerdureError as error:
        channel.send("one line" if "\n" not in str(error) else f"several lines: {error}")
    except BaseException as error:  # that is what is looked for
        channel.send(f"failure: {type(error).__name__}: {error}")


def fuzz(first: Path, folder: Path, cases: int, chance: random.Random) -> Counter[str]:
    opened = Learner.open(first, small_cnn())
    answers = [one.probabilities for one in opened.predict(month(0, 6)[0], opened.tasks[0].name)]
    tally = Counter[str]()
    for case in range(cases):
        path = Path(shutil.copytree(first, folder / "damaged"))
        how = damage(path, chance)
        ours, theirs = forked.Pipe()
        process = forked.Process(target=outcome, args=(path, answers, theirs))
        process.start()
        found = ours.recv() if ours.poll(SLOWEST) else "failure: took too long"
        process.kill()
        process.join()
        tally[found.partition(":")[0]] += 1
        if found.startswith(("failure", "several")):
            print(f"case {case}, {how}: {found}", flush=True)
        shutil.rmtree(path)
    return tally


# --- the service ---


def soak(first: Path, requests: int, chance: random.Random) -> tuple[Counter[str], list[int]]:
    """Status codes, and the memory of the process in KB after a quarter and in the end."""
    import httpx

    from perdure.learner.serve import make_app

    learner = Learner.open(first, small_cnn())
    app, tally, held = make_app(learner, largest=20_000, slowest=5.0), Counter[str](), list[int]()
    content = io.BytesIO()
    Image.fromarray(month(0)[0][0].permute(1, 2, 0).numpy()).save(content, "PNG")
    good = content.getvalue()
    bodies = [good, good, good, good[:50], b"", b"x" * 30_000, os.urandom(500)]

    async def client(share: int) -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://soak") as asking:
            for _ in range(share):
                task = chance.choice(["first", "first", "none", None])
                query = {} if task is None else {"task": task}
                answer = await asking.post("/predict", params=query, content=chance.choice(bodies))
                tally[str(answer.status_code)] += 1

    async def eight(share: int) -> None:
        await asyncio.gather(*(client(share) for _ in range(8)))

    for quarter in range(4):
        learner.state.point_to(1 if quarter % 2 else 2)  # the one without a task, and back
        asyncio.run(eight(requests // 32))
        gc.collect()
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024)
    return tally, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        Learner.create(first, small_cnn(), input=SHAPE, plan=PLAN).learn("first", month(0))
        if given.kills:
            print("kills:", dict(kill(first, Path(folder), given.kills, random.Random(given.seed))), flush=True)
        tally = fuzz(first, Path(folder), given.cases, random.Random(given.seed)) if given.cases else Counter()
        print("damaged states:", dict(tally), flush=True)
        if given.requests:
            codes, held = soak(first, given.requests, random.Random(given.seed))
            print(f"service: {dict(codes)}; memory in KB after each quarter: {held}")
    sys.exit(bool(tally["failure"] or tally["several lines"]))


if __name__ == "__main__":
    main()
