"""The command line: the window by default, and the same engine without it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_trainer_gui import __version__, paths
from gpu_trainer_gui.runs.job import JobError

# Each subcommand's module is imported only when it is asked for: most need rich, some need torch.
COMMANDS = {
    "bench": "train on devices without a window and compare them",
    "devices": "what can train here, and what is wrong with the rest",
    "ladder": "one recipe rung by rung: what makes a GPU fast",
    "sweep": "speed against batch size, width or number of images",
    "data": "list, fetch, import and delete data sets",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _give_streams()
    if given[:1] == ["worker"]:
        from gpu_trainer_gui.engine import worker

        return worker.main(given[1:])
    parser, options = _parsed(given)
    _move_data(options, parser)
    try:
        if options.command is None:
            return _window(options)
        module = importlib.import_module(f"gpu_trainer_gui.commands.{options.command}")
        code: int = module.run(options)
        return code
    except JobError as error:
        option = "--" + error.field.replace("_", "-")
        print(f"{parser.prog}: {option} {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 1


def _parsed(given: list[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="gpu-trainer-gui", description="See what a GPU does for training.")
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    command = next((word for word in given if word in COMMANDS), None)
    if command is None:
        _window_arguments(parser)
        others = "\n".join(f"  {name:9}{text}" for name, text in COMMANDS.items())
        parser.epilog = f"other commands (each has --help):\n{others}"
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    else:
        commands = parser.add_subparsers(dest="command", metavar="COMMAND")
        module = importlib.import_module(f"gpu_trainer_gui.commands.{command}")
        sub = commands.add_parser(command, help=COMMANDS[command], description=COMMANDS[command])
        sub.add_argument("--data-dir", metavar="DIR", type=Path, help="where data sets lie")
        module.add_arguments(sub)
    return parser, parser.parse_args(given)


def _window_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--recipe", metavar="NAME", help="which recipe to set")
    add("--devices", metavar="LIST", help="devices to check, as in cpu,cuda:0")
    add("--data", metavar="NAME", help="digits (built in), mnist, …, or a path to a folder")
    add("--epochs", metavar="N", help="passes over the training images")
    add("--batch-size", metavar="N", help="images a step")
    add("--open", metavar="FILE.gtrun", type=Path, help="open a recording")
    add("--start", action="store_true", help="start training at once")
    add("--quit-when-done", action="store_true", help="quit when training has ended")
    add("--quit-when-ready", action="store_true", help="print start-up seconds and memory, and quit")
    add("--screenshot", metavar="FILE.png", type=Path, help="keep a picture of the window before quitting")
    add("--presenter", action="store_true", help="large type for a projector")
    add("--lang", metavar="CODE", help="language of the window")
    add("--theme", choices=("system", "light", "dark"), help="colours of the window")
    add("--size", metavar="WxH", help="size of the window in pixels, as in 1280x720")
    add("--data-dir", metavar="DIR", type=Path, help="where data sets lie")


def _window(options: argparse.Namespace) -> int:
    from gpu_trainer_gui.ui import app
    from gpu_trainer_gui.ui.options import from_arguments

    return app.run(from_arguments(options))


def _move_data(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    folder: Path | None = options.data_dir
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        parser.error(f"--data-dir {folder} is a file, not a folder")
    # through the environment, so that the worker process finds it too
    os.environ[paths.DATA_VARIABLE] = str(folder.resolve())


def _give_streams() -> None:
    """A windowed program on Windows has no stdout and stderr, and libraries that print would fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - lives as long as we do
