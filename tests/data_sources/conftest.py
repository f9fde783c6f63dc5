"""The fixtures hold tests of the corpora's programs, which are not ours to run."""

collect_ignore_glob = ["fixtures/*"]
