"""Where workers leave letters and the driver collects them. A process of its own, quick to start: it needs no torch."""

import asyncio

Letter = tuple[str, dict[str, bytes]]  # JSON, and files by name


class Desk:
    """Takes letters from workers until the driver collects them, and hands out its answers."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.something = asyncio.Event()
        self.answers: dict[str, asyncio.Future[Letter]] = {}

    async def post(self, text: str, files: dict[str, bytes]) -> None:
        self.letters.append((text, files))
        self.something.set()

    async def collect(self) -> list[Letter]:
        """All there are; is_async for one if there are none, or for a nudge."""
        await self.something.wait()
        self.something.clear()
        letters, self.letters = self.letters, []
        return letters

    async def nudge(self) -> None:
        self.something.set()

    async def ask(self, ticket: str, text: str) -> Letter:
        """Post a letter, and wait for the driver's answer."""
        await self.post(text, {})
        answer = await self._answer(ticket)
        del self.answers[ticket]
        return answer

    async def answer(self, ticket: str, text: str, files: dict[str, bytes]) -> None:
        answer = self._answer(ticket)
        if not answer.done():
            answer.set_result((text, files))

    def _answer(self, ticket: str) -> "asyncio.Future[Letter]":
        return self.answers.setdefault(ticket, asyncio.get_running_loop().create_future())
