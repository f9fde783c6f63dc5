"""The file that the nursery's interpreter is started with. Nothing is imported before it has noted what is loaded."""

import sys

fresh, path = frozenset(sys.modules), list(sys.path)
sys.path.insert(0, __file__.rsplit("/", 4)[0])  # the folder of the package `rollout`, which holds the guest alone here

from rollout.sandbox.guest.warm_imports import WarmImports  # noqa: E402

imports = WarmImports(fresh)

from rollout.sandbox.guest.supervisor import main  # noqa: E402

main(imports, path)
