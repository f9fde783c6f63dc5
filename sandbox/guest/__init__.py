"""Code that runs in the fork server and in each sandbox: standard library only, started with `python -P -s -S -B`."""
