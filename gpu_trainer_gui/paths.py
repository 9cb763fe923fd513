"""Where the program's folders and its packaged resources are."""

from __future__ import annotations

import importlib.resources
import os
import sys
import tempfile
from pathlib import Path

import platformdirs

APP = "gpu-trainer-gui"
HOME_VARIABLE = "GPU_TRAINER_HOME"
DATA_VARIABLE = "GPU_TRAINER_DATA_DIR"


def _folder(kind: str, default: str) -> Path:
    home = os.environ.get(HOME_VARIABLE)
    return Path(home).expanduser() / kind if home else Path(default)


def config_dir() -> Path:
    """Settings and window state."""
    return _folder("config", platformdirs.user_config_dir(APP, appauthor=False))


def recordings_dir() -> Path:
    """Every run's .gtrun file."""
    return _folder("data", platformdirs.user_data_dir(APP, appauthor=False)) / "recordings"


def log_dir() -> Path:
    return _folder("log", platformdirs.user_log_dir(APP, appauthor=False))


def datasets_dir() -> Path:
    """Data sets: ``--data-dir`` (handed on as GPU_TRAINER_DATA_DIR) moves this one alone."""
    own = os.environ.get(DATA_VARIABLE)
    if own:
        return Path(own).expanduser()
    return _folder("cache", platformdirs.user_cache_dir(APP, appauthor=False)) / "datasets"


def writable(folder: Path) -> Path:
    """The folder, made if need be; where it cannot be written, one in the temporary folder instead.

    Classroom machines have read-only or absent homes, and the program must start there.
    Raises OSError when the temporary folder cannot be written either.
    """
    for candidate in (folder, Path(tempfile.gettempdir()) / APP / folder.name):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=candidate):
                return candidate
        except OSError:
            continue
    raise OSError(f"neither {folder} nor the temporary folder can be written")


def resource(relative: str) -> Path:
    """A file of ``resources/``: inside the package when installed, beside it in a checkout or a frozen program.

    Raises FileNotFoundError naming the file.
    """
    roots = [
        Path(str(importlib.resources.files("gpu_trainer_gui"))) / "resources",
        Path(__file__).resolve().parent.parent / "resources",
    ]
    frozen = getattr(sys, "_MEIPASS", None)
    if frozen:
        roots.append(Path(frozen) / "resources")
    for root in roots:
        path = root / relative
        if path.exists():
            return path
    raise FileNotFoundError(f"the program's resource {relative} is missing")
