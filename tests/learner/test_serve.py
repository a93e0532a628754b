"""The service: right answers, right status codes, and no way to bring it down."""

import asyncio
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from shop import month

from perdure.learner.learner import Learner

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from perdure.learner.serve import make_app  # noqa: E402 — it needs the packages

LARGEST = 20_000
OWN = """
import sys
sys.path.insert(0, {folder!r})
from shop import small_cnn

def network(shape):
    return small_cnn()
"""


def png(row: int = 0) -> bytes:
    content = io.BytesIO()
    Image.fromarray(month(0, seed=1)[0][row].permute(1, 2, 0).numpy()).save(content, "PNG")
    return content.getvalue()


def asked(app: object, *requests: tuple[str, str, object]) -> list[object]:
    """What it answers to several requests at once."""

    async def ask() -> list[object]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await asyncio.gather(*(client.request(how, where, content=what) for how, where, what in requests))

    return asyncio.run(ask())


def test_answers_and_status_codes(opened: Callable[[], Learner]) -> None:
    learner = opened()
    app = make_app(learner, LARGEST)
    expected = learner.predict(month(0, seed=1)[0][:1], "first")[0]

    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(100):
            yield b"x" * 1000

    good, inferred, task, broken, empty, large, streamed, health, tasks, api = asked(
        app,
        ("POST", "/predict?task=first", png()),
        ("POST", "/predict", png()),
        ("POST", "/predict?task=none", png()),
        ("POST", "/predict?task=first", png()[:60]),
        ("POST", "/predict?task=first", b""),
        ("POST", "/predict?task=first", b"x" * (LARGEST + 1)),
        ("POST", "/predict?task=first", endless()),
        ("GET", "/health", None),
        ("GET", "/tasks", None),
        ("GET", "/openapi.json", None),
    )
    assert good.status_code == 200
    assert (good.json()["class"], good.json()["revision"]) == (expected.name, 3)
    assert max(abs(good.json()["probabilities"][k] - v) for k, v in expected.probabilities.items()) < 1e-5
    assert inferred.json()["task"] == "first"
    codes = [answer.status_code for answer in (task, broken, empty, large, streamed)]
    assert codes == [404, 400, 400, 413, 413]
    assert health.json() == {"status": "ok", "revision": 3, "problem": ""}
    assert tasks.json()["tasks"]["second"] == ["a1", "b1", "c1"]
    assert "/predict" in api.json()["paths"]


def test_slow_clients_are_sent_away(opened: Callable[[], Learner]) -> None:
    async def slow():  # type: ignore[no-untyped-def]
        yield png()[:10]
        await asyncio.sleep(5)

    (answer,) = asked(make_app(opened(), LARGEST, slowest=0.2), ("POST", "/predict?task=first", slow()))
    assert answer.status_code == 408


def test_many_clients_at_once_get_their_own_answers(opened: Callable[[], Learner]) -> None:
    learner = opened()
    x = month(0, seed=1)[0][:12]
    expected = [answer.name for answer in learner.predict(x, "first")]
    found = asked(make_app(learner, LARGEST), *(("POST", "/predict?task=first", png(row)) for row in range(12)))
    assert [answer.json()["class"] for answer in found] == expected


def test_a_new_revision_is_used_and_a_damaged_one_is_not(opened: Callable[[], Learner], state: Path) -> None:
    served = make_app(opened(), LARGEST)
    other = opened()
    other.learn("third", month(2), plan={"epochs": 1})
    (now,) = asked(served, ("GET", "/tasks", None))
    assert (now.json()["revision"], "third" in now.json()["tasks"]) == (4, True)
    other.rollback(3)
    shutil.rmtree(state / "revisions" / "003")
    health, answer = asked(served, ("GET", "/health", None), ("POST", "/predict?task=first", png()))
    assert (health.json()["status"], health.json()["revision"]) == ("stale", 4)
    assert answer.status_code == 200


@pytest.mark.thorough
def test_the_command_serves_and_starts_again_after_a_kill(state: Path, tmp_path: Path) -> None:
    """Two starts of `perdure serve`, the first ended by SIGKILL; half-sent requests on the way do no harm."""
    (tmp_path / "own.py").write_text(OWN.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, "-m", "perdure", "serve", str(state), "--net", "own.py:network", "--port", "0"]
    for end in (signal.SIGKILL, signal.SIGTERM):
        log = tmp_path / f"{end.name}.log"
        with log.open("w") as said, subprocess.Popen(command, cwd=tmp_path, stderr=said) as process:
            try:
                port = _port(log, process)
                with socket.create_connection(("127.0.0.1", port)) as half:
                    half.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nabc")
                answer = httpx.post(f"http://127.0.0.1:{port}/predict?task=first", content=png(), timeout=60)
                assert (answer.status_code, answer.json()["revision"]) == (200, 3)
            finally:
                os.kill(process.pid, end)
                process.wait(timeout=60)


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Where it listens, as it says when it does."""
    while process.poll() is None:
        if found := re.search(r"revision 3 at http://127\.0\.0\.1:([0-9]+)/", log.read_text()):
            return int(found[1])
        time.sleep(0.1)
    raise AssertionError(log.read_text())
