"""A small HTTP service around a learner: an image in, its class out, with the revision that said so."""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from perdure.data.images import read_image
from perdure.errors import BadData, PerdureError, UnknownName, WrongValue, install_hint
from perdure.learner.learner import Answer, Learner

SLOWEST = 30.0  # seconds for a client to send its image
MOST_AT_ONCE = 64  # clients; others are told to come back


class Service:
    """The learner, always at the revision in use."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.lock, self.problem = learner, threading.Lock(), ""

    def current(self) -> Learner:
        """Opened again if another revision is in use by now; one that cannot be read leaves the one before."""
        try:
            if self.learner.state.head().revision != self.learner.revision:
                self.learner._reload()
            self.problem = ""
        except PerdureError as error:
            self.problem = str(error)
        return self.learner

    def answer(self, content: bytes, task: str | None) -> Answer:
        with self.lock:
            learner = self.current()
            channels, height, _ = learner.shape
            pixels = torch.from_numpy(read_image(content, height, channels))[None]
            return learner.predict(pixels, task)[0]


def make_app(learner: Learner, largest: int, slowest: float = SLOWEST) -> Any:
    """The service as an ASGI application."""
    try:
        from fastapi import FastAPI, HTTPException, Request
        from fastapi.concurrency import run_in_threadpool
    except ImportError:
        raise WrongValue(f"the service needs packages that are not installed: {install_hint('serve')}") from None

    service = Service(learner)
    app = FastAPI(title="perdure", description="Classes of images, by a learner.", version=str(learner.revision))

    @app.get("/health")
    def health() -> dict[str, Any]:
        """Whether it answers, and with which revision."""
        with service.lock:
            found = service.current()
        return {"status": "stale" if service.problem else "ok", "revision": found.revision, "problem": service.problem}

    @app.get("/tasks")
    def tasks() -> dict[str, Any]:
        """The tasks that it knows, with their classes."""
        with service.lock:
            found = service.current()
        return {"revision": found.revision, "tasks": {task.name: task.classes for task in found.tasks}}

    body = {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}

    @app.post("/predict", openapi_extra={"requestBody": body})
    async def predict(request: Request, task: str | None = None) -> dict[str, Any]:
        """The class of an image file, which is the body. Without a task, that is found, too; null if it is unknown."""
        with suppress(ValueError):
            if int(request.headers.get("content-length", "0")) > largest:
                raise HTTPException(413, f"an image may have {largest} bytes")
        content = bytearray()
        try:
            async with asyncio.timeout(slowest):
                async for chunk in request.stream():
                    content += chunk
                    if len(content) > largest:
                        raise HTTPException(413, f"an image may have {largest} bytes")
        except TimeoutError:
            raise HTTPException(408, "the image did not arrive in time") from None
        if not content:
            raise HTTPException(400, "send the bytes of an image file as the body")
        try:
            found = await run_in_threadpool(service.answer, bytes(content), task)
        except UnknownName as error:
            raise HTTPException(404, str(error)) from None
        except (BadData, WrongValue) as error:
            raise HTTPException(400, str(error)) from None
        return {"class": found.name, **{name: value for name, value in vars(found).items() if name != "name"}}

    predict.__annotations__["request"] = Request  # which is imported here, where FastAPI cannot see it
    return app


def run_service(learner: Learner, *, host: str, port: int, largest: int, say: Callable[[str], None]) -> None:
    """Serve until interrupted."""
    app = make_app(learner, largest)
    try:
        import uvicorn
    except ImportError:
        raise WrongValue(f"the service needs packages that are not installed: {install_hint('serve')}") from None
    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise WrongValue(f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port") from None
    say(f"revision {learner.revision} at http://{host}:{listening.getsockname()[1]}/docs")
    config = uvicorn.Config(
        app, log_level="warning", limit_concurrency=MOST_AT_ONCE, timeout_keep_alive=5, timeout_graceful_shutdown=5
    )
    uvicorn.Server(config).run(sockets=[listening])
