"""The subcommands of the command line, one a file."""
