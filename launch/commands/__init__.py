"""The sub-commands of `slime-swe`, one module each: `add_arguments(parser)` and `run(options) -> exit code`."""
