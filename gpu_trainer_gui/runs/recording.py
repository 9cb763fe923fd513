"""A stream of events kept as a .gtrun file: a header line, then one JSON line an event, appended as they happen.

A torn last line (the machine went down while writing) is ignored, an event of a kind that this version does not know is
skipped with a note, anything else malformed is a RecordingError that names the line and the field.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpu_trainer_gui import __version__
from gpu_trainer_gui.runs.events import (
    SCHEMA,
    Annotated,
    AnyEvent,
    DeviceSummary,
    Summarised,
    decode_event,
    encode,
)
from gpu_trainer_gui.runs.summary import Summariser

SUFFIX = ".gtrun"
_TAIL_BYTES = 16_384


class RecordingError(ValueError):
    """A file is not a readable recording; the text names the file, the line and, where there is one, the field."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. ``gtrun`` is the format's version, ``created`` the wall clock, seconds since 1970 UTC."""

    gtrun: int
    program: str = ""
    created: float = 0.0


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A recording as read: its events in order, and what was passed over, in words."""

    path: Path
    header: Header
    events: list[AnyEvent]
    notes: tuple[str, ...] = ()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table of recordings; ``bytes`` is the file's size, ``created`` seconds since 1970 UTC."""

    path: Path
    created: float
    bytes: int
    title: str = ""
    note: str = ""
    recipe: str = ""
    data: str = ""
    batch_size: int = 0
    precision: str = ""
    launch: str = ""
    epochs: int = 0
    machine: str = ""
    devices: tuple[DeviceSummary, ...] = ()
    problem: str = ""
    """Why the file cannot be read; everything else is unknown then."""


class Recorder:
    """Appends events to a new file; what is written survives a crash of the program.

    Raises OSError when the file cannot be made. A disk that fills up later ends the recording, never the training:
    ``error`` then says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error = ""
        self._summariser = Summariser()
        self._file: BinaryIO | None = path.open("wb")
        header = Header(gtrun=SCHEMA, program=f"gpu-trainer-gui {__version__}", created=time.time())
        self._append(msgspec.json.encode(header) + b"\n")

    def write(self, event: AnyEvent) -> None:
        """Append one event."""
        self._summariser.feed(event)
        self._append(encode(event))

    def close(self) -> None:
        """Append the summary and see it on the disk; more than once does no harm."""
        if self._file is None:
            return
        summary = self._summariser.summary
        if summary is not None:
            self._append(encode(summary))
        file, self._file = self._file, None
        if file is not None:
            try:
                os.fsync(file.fileno())
                file.close()
            except OSError as error:
                self.error = f"{self.path}: {error.strerror or error}"

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            self.error = f"{self.path}: {error.strerror or error}"
            file, self._file = self._file, None
            with contextlib.suppress(OSError):
                file.close()  # what could not be written cannot be written now either


def new_path(folder: Path, recipe: str, now: float | None = None) -> Path:
    """A name for a new recording that no file has yet: the local date and time, and the recipe."""
    stamp = time.strftime("%Y-%m-%d %H%M%S", time.localtime(now))
    plain = re.sub(r"[^\w.-]+", "-", recipe).strip("-") or "run"
    path = folder / f"{stamp} {plain}{SUFFIX}"
    number = 2
    while path.exists():
        path = folder / f"{stamp} {plain} {number}{SUFFIX}"
        number += 1
    return path


def read(path: Path) -> Recording:
    """The whole recording. Raises RecordingError for a file that is not one, OSError when it cannot be opened."""
    with path.open("rb") as file:
        header = _header(path, file.readline())
        notes: list[str] = []
        events = list(_events(path, file, notes))
    return Recording(path=path, header=header, events=events, notes=tuple(notes))


def write(path: Path, events: Iterable[AnyEvent]) -> None:
    """Write a whole recording at once. Raises OSError."""
    recorder = Recorder(path)
    for event in events:
        if not isinstance(event, Summarised):
            recorder.write(event)
    recorder.close()
    if recorder.error:
        raise OSError(recorder.error)


def annotate(path: Path, title: str, note: str) -> None:
    """Name a recording, or write a note on it. Raises OSError."""
    with path.open("r+b") as file:
        _mend_end(file)
        file.write(encode(Annotated(title=title, note=note)))


def _mend_end(file: BinaryIO) -> None:
    """Go to where a line can be appended: a last line that is whole but for its end gets it, a torn one is cut off."""
    size = file.seek(0, os.SEEK_END)
    start = size
    tail = b""
    while start and b"\n" not in tail:
        start = max(0, start - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(size - start)
    torn = tail.rpartition(b"\n")[2]
    file.seek(0, os.SEEK_END)
    if not torn:
        return
    try:
        decode_event(torn)
    except msgspec.MsgspecError:
        file.seek(size - len(torn))
        file.truncate()
    else:
        file.write(b"\n")


def summaries(folder: Path) -> list[Summary]:
    """Every recording of a folder, newest first; one that cannot be read is listed with its problem."""
    try:
        paths = [entry for entry in os.scandir(folder) if entry.name.endswith(SUFFIX) and entry.is_file()]
    except OSError:
        return []
    return sorted((summary(Path(entry.path)) for entry in paths), key=lambda row: row.created, reverse=True)


def summary(path: Path) -> Summary:
    """A recording in short, from its first and last lines where it was closed, else from the whole of it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = _header(path, file.readline())
            found = _tail(file, size)
            if not isinstance(found.summary, Summarised):
                file.seek(0)
                file.readline()
                found = _Found(file=file, path=path)
    except (OSError, RecordingError) as error:
        return Summary(path=path, created=_modified(path), bytes=0, problem=str(error))
    if found.summary is None:
        return Summary(path=path, created=header.created, bytes=size, title=found.title, note=found.note)
    short = found.summary
    return Summary(
        path=path,
        created=header.created,
        bytes=size,
        title=found.title,
        note=found.note,
        recipe=short.recipe,
        data=short.data,
        batch_size=short.batch_size,
        precision=short.precision,
        launch=short.launch,
        epochs=short.epochs,
        machine=short.machine,
        devices=short.devices,
    )


class _Found:
    """A file's summary and annotation: from the whole file, or filled in by ``_tail``."""

    def __init__(self, *, file: BinaryIO | None = None, path: Path | None = None) -> None:
        self.summary: Summarised | None = None
        self.title = ""
        self.note = ""
        if file is not None and path is not None:
            summariser = Summariser()
            for event in _events(path, file, []):
                summariser.feed(event)
            self.summary, self.title, self.note = summariser.summary, summariser.title, summariser.note


def _tail(file: BinaryIO, size: int) -> _Found:
    """What the last lines say; a summary only where one is among them and nothing but annotations came after it."""
    found = _Found()
    start = max(file.tell(), size - _TAIL_BYTES)
    file.seek(start)
    lines = file.read().split(b"\n")
    for line in reversed(lines):
        if line.startswith((b'{"event":"Summarised"', b'{"event":"Annotated"')):
            try:
                event = decode_event(line)
            except msgspec.MsgspecError:
                break
            if isinstance(event, Annotated) and not found.title and not found.note:
                found.title, found.note = event.title, event.note
            if isinstance(event, Summarised):
                found.summary = event
                break
        elif line:
            break
    return found


def _header(path: Path, line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        raise RecordingError(f"{path.name}: line 1: is not the header of a recording") from None
    if header.gtrun > SCHEMA:
        raise RecordingError(
            f"{path.name}: line 1: gtrun is {header.gtrun}: made by a newer version of this program "
            f"({header.program}); this one reads up to {SCHEMA}"
        )
    return header


def _events(path: Path, lines: Iterable[bytes], notes: list[str]) -> Iterator[AnyEvent]:
    """The events of the lines after the header; what is passed over is noted."""
    unknown: dict[str, int] = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip(b"\r\n\0 "):
            continue
        try:
            yield decode_event(line)
        except msgspec.MsgspecError as error:
            if not line.endswith(b"\n"):
                notes.append(f"line {number}: was not written to its end and is left out")
                break
            kind = _kind(line)
            if kind is None or kind in _known_kinds():
                raise RecordingError(f"{path.name}: line {number}: {_complaint(error)}") from None
            unknown[kind] = unknown.get(kind, 0) + 1
    notes += [f"{count} events of the unknown kind {kind} are left out" for kind, count in unknown.items()]


class _Tag(msgspec.Struct):
    event: str


def _kind(line: bytes) -> str | None:
    try:
        return msgspec.json.decode(line, type=_Tag).event
    except msgspec.MsgspecError:
        return None


def _known_kinds() -> set[str]:
    return {kind.__name__ for kind in AnyEvent.__args__}


def _complaint(error: msgspec.MsgspecError) -> str:
    """The error with the field named first: "epoch: expected `int`, got `str`"."""
    found = re.fullmatch(r"(.*?) - at `\$\.?(.*)`", str(error), re.DOTALL)
    if found is None:
        return f"is not an event: {error}"
    return f"{found[2]}: {found[1][0].lower()}{found[1][1:]}"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
