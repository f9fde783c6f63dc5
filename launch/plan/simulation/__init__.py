"""Rollout schedules on a simulated clock, from which `slime-swe plan` and `benchmarks/rollout_schedule.py` take times.

The driver, the player and the schedulers are those of a run (`slime_swe.rollout`). Episodes (`workload.py`) and
machines (`machines.py`) are simulated; `schedules.py` counts what comes of them.
"""
