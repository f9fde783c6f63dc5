"""The fork server's interpreter is started with this file. Nothing is imported before it has noted what is loaded."""

import sys

fresh, path = frozenset(sys.modules), list(sys.path)
sys.path.insert(0, __file__.rsplit("/", 2)[0])  # the folder of this package, which is called `slime_swe_guest` here

from slime_swe_guest.warm_imports import WarmImports  # noqa: E402

imports = WarmImports(fresh)

from slime_swe_guest.supervisor import main  # noqa: E402

main(imports, path)
