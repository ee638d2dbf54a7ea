"""What clients have registered, as all frontends see it: one small file for each region in a folder of the service.

Creating a file under its final name is the registration and removing it is the end of it, so there is no lock, no
message between frontends, and nothing to repair when one of them dies.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from gatefuse.errors import AlreadyExists, InvalidRequest

MAX_NAME_LENGTH = 256
MAX_REGIONS = 4096

Version = tuple[int, int]
"""What tells one registration of a name from the next."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A region as it was registered; `key`, `offset` and `identity` of system memory, the rest of a GPU's."""

    name: str
    byte_size: int
    key: str = ""
    offset: int = 0
    identity: tuple[int, int] = (0, 0)  # device and inode of the shared-memory object
    device_id: int = -1
    handle: bytes = b""  # CUDA IPC handle

    @property
    def on_gpu(self) -> bool:
        """True for a GPU's memory."""
        return bool(self.handle)

    def pack(self) -> bytes:
        """The file's content."""
        return json.dumps({**asdict(self), "handle": self.handle.hex()}).encode()

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """The registration in a file."""
        fields = json.loads(content)
        fields["handle"] = bytes.fromhex(fields["handle"])
        fields["identity"] = tuple(fields["identity"])
        return cls(**fields)


class Registry:
    """The regions of one service."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made if it is not there; the service removes it when it ends."""
        self._folder = str(folder)
        folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, registration: Registration) -> None:
        """Registers a region.

        Raises:
            AlreadyExists: its name is taken.
            InvalidRequest: the name is empty or too long, or there are too many regions.
        """
        name = registration.name
        if not 1 <= len(name) <= MAX_NAME_LENGTH:
            raise InvalidRequest("size", f"name must have 1 to {MAX_NAME_LENGTH} characters")
        if len(os.listdir(self._folder)) >= MAX_REGIONS:
            raise InvalidRequest("size", f"{MAX_REGIONS} shared memory regions are registered")
        final = self._path(name)
        draft = f"{final}.{os.getpid()}"
        with open(draft, "wb") as file:
            file.write(registration.pack())
        try:
            os.link(draft, final)  # unlike a rename it fails where the name is taken
        except FileExistsError as error:
            raise AlreadyExists(f"shared memory region '{name}' is registered already") from error
        finally:
            os.unlink(draft)

    def version(self, name: str) -> Version | None:
        """What tells this registration of the name from others; None if there is none."""
        try:
            found = os.stat(self._path(name))
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def get(self, name: str) -> Registration | None:
        """The registration of that name; None if there is none."""
        return self._read(self._path(name))

    def all(self) -> Iterator[Registration]:
        """Every registration."""
        for entry in os.listdir(self._folder):
            if "." not in entry and (found := self._read(f"{self._folder}/{entry}")):
                yield found

    def remove(self, name: str) -> None:
        """Ends a registration, if there is one."""
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._folder}/{_file_name(name)}"

    @staticmethod
    def _read(path: str) -> Registration | None:
        try:
            with open(path, "rb") as file:
                return Registration.unpack(file.read())
        except FileNotFoundError:
            return None


# A name is the client's own: it may hold anything, a slash too.
@lru_cache(maxsize=1024)
def _file_name(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
