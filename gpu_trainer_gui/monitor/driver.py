"""NVIDIA's management library: started once, every question tolerant; why it does not answer is told in words."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar


def installed() -> Any:
    """The module of nvidia-ml-py, which is optional at run time; None without it."""
    with suppress(ImportError):
        return importlib.import_module("pynvml")
    return None


T = TypeVar("T")
Fault = Literal["", "no_package", "no_driver", "mismatch", "no_permission", "no_card", "lost", "other"]
# NVML's own numbers of what can go wrong at its start.
_FAULTS: dict[int, tuple[Fault, str]] = {
    4: ("no_permission", "the driver refuses to be asked by this user"),
    9: ("no_driver", "NVIDIA's driver is not loaded"),
    12: ("no_driver", "NVIDIA's driver is not installed"),
    15: ("lost", "the driver has lost its card: restart the computer"),
    16: ("lost", "the card must be reset: restart the computer"),
    17: ("no_permission", "the system keeps the driver from this program"),
    18: ("mismatch", "the driver was updated while the computer ran: restart the computer"),
}


class Driver:
    """The library, started once; ``fault`` and ``reason`` say why it could not be."""

    def __init__(self, library: Any = None) -> None:
        self.library = library
        self._lock = threading.Lock()
        self._started = False
        self._handles: dict[str, object] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self.pcie: dict[str, tuple[float, int, int]] = {}
        self.fault: Fault = ""
        self.reason = ""

    def start(self) -> bool:
        """Whether the library answers; one that did not is tried again at the next call."""
        with self._lock:
            if self._started:
                return True
            try:
                if self.library is None:
                    self.fault, self.reason = "no_package", "the package nvidia-ml-py is not installed"
                    return False
                self.library.nvmlInit()
            except Exception as error:
                self.fault, self.reason = _explained(error)
                return False
            self._started, self.fault, self.reason = True, "", ""
            return True

    def handle(self, uuid: object) -> object | None:
        """The driver's handle of a card, by its UUID with or without its prefix."""
        key = str(uuid)
        if not self.start():
            return None
        if key not in self._handles:
            spellings = [key] if key.startswith(("GPU-", "MIG-")) else [f"GPU-{key}", f"MIG-{key}", key]
            for spelling in spellings:
                found = ask(lambda spelling=spelling: self.library.nvmlDeviceGetHandleByUUID(spelling))  # type: ignore[misc]
                if found is not None:
                    self._handles[key] = found
                    break
            else:
                return None
        return self._handles[key]

    def figure(self, uuid: object, what: str, question: Callable[[], T]) -> T | None:
        """The answer, or None; a figure refused three times in a row is not asked for again."""
        key = (str(uuid), what)
        refused = self._refused.get(key, 0)
        if refused >= 3:
            return None
        found = ask(question)
        self._refused[key] = 0 if found is not None else refused + 1
        return found


def ask(question: Callable[[], T]) -> T | None:
    """The answer, or None where the driver has none. ctypes and old libraries raise errors of many types."""
    try:
        return question()
    except Exception:
        return None


driver = Driver(installed())


def _explained(error: Exception) -> tuple[Fault, str]:
    """Why the library did not start, from the number it gave."""
    number = getattr(error, "value", None)
    if isinstance(number, int) and number in _FAULTS:
        return _FAULTS[number]
    return "other", f"the driver does not answer: {error}"
