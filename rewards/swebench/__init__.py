"""SWE-bench's oracle: its eval scripts and log parsers, in our sandboxes or by its own harness.

Only `worker` imports swebench. It runs in its own process.
"""
