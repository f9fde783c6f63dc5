"""The public corpora that tasks can be loaded from. Each module describes one corpus and loads it.

Left out: SWE-bench Multimodal, whose test split has no patches and no tests.
"""

from importlib import import_module

from slime_swe.data_sources.corpora.corpus import Corpus

_NAMES = (
    "swebench",
    "swegym",
    "swesmith",
    "r2egym",
    "swerebench",
    "quixbugs",
    "bugsinpy",
    "defects4j",
    "gitbug_java",
    "polyglot",
    "primevul",
    "debian_cve",
    "bandit",
)
CORPORA: dict[str, Corpus] = {name: import_module(f"{__name__}.{name}").CORPUS for name in _NAMES}
