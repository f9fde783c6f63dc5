"""SWE-bench's oracle: its eval scripts and log parsers, in our sandboxes or by its own harness.

swebench itself is imported by no module of this package but `worker`, which runs in a process of its own.
"""
