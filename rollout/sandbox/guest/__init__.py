"""What runs inside the nursery and inside each sandbox: standard library only, started with `python -P -s -S -B`."""
