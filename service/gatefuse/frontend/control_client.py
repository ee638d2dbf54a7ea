"""A frontend's line to the driver, which alone decides what is loaded: a question is one connection, JSON each way."""

import asyncio
import json
from pathlib import Path
from typing import Any

from gatefuse.errors import InvalidRequest, SupervisorSilent

CONTROL_SOCKET = "control.sock"
MAX_LINE_BYTES = 1024 * 1024


class ControlClient:
    """Asks the driver to load and unload models; see `rpc.repository.ModelControl`."""

    def __init__(self, path: Path) -> None:
        """`path` is where the driver listens."""
        self._path = path

    async def load(self, name: str, config: str | None) -> None:
        """Returns when requests get the model. Raises InvalidRequest if it could not be loaded."""
        await self._ask({"operation": "load", "model": name, "config": config})

    async def unload(self, name: str) -> None:
        """Returns when the model's memory is free. Raises InvalidRequest if there is no such model."""
        await self._ask({"operation": "unload", "model": name})

    async def set_logging(self, changes: dict[str, Any]) -> None:
        """Returns when every process of the service logs so. Raises InvalidRequest."""
        await self._ask({"operation": "log", "changes": changes})

    async def set_trace(self, model: str, changes: dict[str, list[str]]) -> None:
        """Returns when every frontend traces so. Raises InvalidRequest."""
        await self._ask({"operation": "trace", "model": model, "changes": changes})

    async def _ask(self, question: dict[str, Any]) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(
                str(self._path), limit=MAX_LINE_BYTES
            )
            try:
                writer.write(json.dumps(question).encode() + b"\n")
                await writer.drain()
                answer = await reader.readline()
            finally:
                writer.close()
        except OSError as error:
            raise SupervisorSilent from error
        if not answer:
            raise SupervisorSilent
        if (refusal := json.loads(answer)["error"]) is not None:
            raise InvalidRequest("model", refusal)
