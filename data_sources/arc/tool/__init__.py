"""Runs in sandboxes, where it is the package `arc_tool`: the agent's command, and what the grader runs.

It needs Python's standard library alone, and imports nothing of ours.
"""
