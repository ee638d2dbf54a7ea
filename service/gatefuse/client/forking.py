"""What must not be shared with a forked child: whose it is, and what the child does with its copy."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something of which a forked child starts a new one in place of its copy."""

    def renew(self) -> None:
        """Runs in the child, which has one thread; another thread of the parent may have held a lock."""


_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_child(renewable: Renewable) -> None:
    """Has the object renewed in every child that is forked while it lives."""
    _renewables.add(renewable)


def _renew_all() -> None:
    for renewable in list(_renewables):
        renewable.renew()


os.register_at_fork(after_in_child=_renew_all)


class Maker:
    """The process that made something which serves that process alone."""

    def __init__(self, what: str) -> None:
        """``what`` begins the error's text."""
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """True in the process itself, False in a forked child."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises RuntimeError in a forked child."""
        if not self.is_here:
            raise RuntimeError(f"{self._what} belongs to the process that this one was forked from")
