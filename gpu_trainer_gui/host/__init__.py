"""The window's end of the pipe to the worker process."""
