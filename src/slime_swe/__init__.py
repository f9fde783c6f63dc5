"""slime-swe: recipes that train coding agents with reinforcement learning on software-engineering tasks.

The packages stand at the top of the repository; here are links to them, so that all are imported below one name and
no `rewards.py` or `recipes/` of yours is in their way.
"""

__version__ = "0.1.0"
