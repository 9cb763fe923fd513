"""``python -m gpu_trainer_gui``: the command line, whose default is the window."""

import multiprocessing

from gpu_trainer_gui.cli import main

if __name__ == "__main__":
    multiprocessing.freeze_support()
    raise SystemExit(main())
