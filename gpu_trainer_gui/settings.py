"""What the user has set: one frozen struct, one JSON file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from gpu_trainer_gui import paths
from gpu_trainer_gui.runs.job import TrainingJob, problems

FILE = "settings.json"
RECENT = 10


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``job`` is the form as it was left; ``devices`` the ones that were checked (empty: all that can train)."""

    theme: Literal["system", "light", "dark"] = "system"
    language: str = ""
    run_in: Literal["process", "thread"] = "process"
    decimal_units: bool = False
    presenter: bool = False
    recipe: str = "flux-mnist"
    job: TrainingJob | None = None
    devices: tuple[str, ...] = ()
    recent_files: tuple[str, ...] = ()

    def replace(self, **changes: object) -> Settings:
        """The same settings with some changed."""
        return msgspec.structs.replace(self, **changes)

    def with_recent(self, path: Path) -> Settings:
        """The settings with a file as the most recent one."""
        text = str(path)
        others = tuple(other for other in self.recent_files if other != text)
        return self.replace(recent_files=(text, *others)[:RECENT])


def load(folder: Path | None = None) -> tuple[Settings, str]:
    """The settings, and a sentence when a damaged file was set aside and the defaults are used."""
    path = (folder or paths.config_dir()) / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Settings(), ""
    except OSError as error:
        return Settings(), f"The settings in {path} cannot be read ({error.strerror}): the defaults are used."
    try:
        found = msgspec.json.decode(text, type=Settings)
    except msgspec.MsgspecError as error:
        aside = _set_aside(path)
        kept = f"; the file is kept as {aside.name}" if aside else ""
        return Settings(), f"The settings in {path} are damaged ({error}): the defaults are used{kept}."
    wrong = problems(found.job) if found.job else []
    if wrong:
        return found.replace(job=None), f"The kept job is not usable ({wrong[0]}): the recipe's is used."
    return found, ""


def save(settings: Settings, folder: Path | None = None) -> str:
    """Write the settings; returns why it could not be done, or nothing. A reader finds the old file or the new one."""
    path = (folder or paths.writable(paths.config_dir())) / FILE
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".settings.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(settings), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        return f"The settings cannot be kept in {path}: {error.strerror or error}."
    return ""


def _set_aside(path: Path) -> Path | None:
    aside = path.with_suffix(".damaged.json")
    try:
        path.replace(aside)
    except OSError:
        return None
    return aside
