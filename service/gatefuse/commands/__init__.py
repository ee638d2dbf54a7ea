"""What the `gatefuse` command does, a module or a package for each subcommand."""
