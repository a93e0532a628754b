"""A browser for tests: Debian's chromium without a window, spoken to over a pipe by its DevTools protocol."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60  # seconds for an answer, of a browser on a busy machine


def installed() -> str | None:
    """The path of a browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """A page in the browser. What it logs, and what it asks for, is kept in `events`."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest, self._number = read, write, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """A command and its answer; what happens meanwhile is added to the events."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, file: Path, width: int, scheme: str = "light", height: int = 900) -> None:
        """Load a page in a window of that size, on a system that prefers light or dark."""
        self.resize(width, scheme, height)
        begun = len(self.events)
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events[begun:]):
            self._next()

    def resize(self, width: int, scheme: str = "light", height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """What it complained of: exceptions, and errors in the console."""
        wrong = [event for event in self.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        logged = [event for event in self.events if event["method"] == "Runtime.consoleAPICalled"]
        return [json.dumps(event["params"]) for event in [*wrong, *logged]]

    def requests(self) -> list[str]:
        """The addresses it asked for, without images that are in the page itself."""
        asked = [event["params"]["request"]["url"] for event in self.events if event["method"] == REQUEST]
        return [url for url in asked if not url.startswith("data:")]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select([self._read], [], [], PATIENCE)[0], "the browser does not answer"
            found = os.read(self._read, 1 << 20)
            assert found, "the browser has gone"
            self._rest += found
        message, _, self._rest = self._rest.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        if "method" in content:
            self.events.append(content)
        return content


REQUEST = "Network.requestWillBeSent"


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Tab]:
    """A tab of a fresh browser whose profile is in this folder; the browser goes in the end."""
    to_read, to_write = os.pipe()  # commands
    answers_read, answers_write = os.pipe()

    def plumb() -> None:  # the browser reads commands from 3 and answers on 4
        commands, answers = os.dup(to_read), os.dup(answers_write)
        os.dup2(commands, 3)
        os.dup2(answers, 4)

    words = [program, *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        words, preexec_fn=plumb, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(answers_write)
    try:
        yield Tab(answers_read, to_write)
    finally:
        process.terminate()
        process.wait()
        os.close(to_write)
        os.close(answers_read)
