"""Rollout schedules on a simulated clock, from which `slime-swe plan` and `benchmarks/rollout_schedule.py` take times.

The schedulers of `slime_swe.rollout.scheduling` decide as they do in a run. Episodes (`workload.py`) and machines
(`machines.py`) are simulated; `ledger.py` counts what comes of them.
"""
