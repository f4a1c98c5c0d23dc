"""What Python imports as it begins, where `saturate why` has put this folder first on PYTHONPATH: it sets hooks, and
runs the environment's own sitecustomize.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def _begin() -> None:
    package = HERE.parents[1]
    # by its own path: a checkout on sys.path would bring its models, loaders and tests along
    spec = importlib.util.spec_from_file_location(
        "saturate",
        package / "__init__.py",
        submodule_search_locations=[str(package)],
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["saturate"] = module
    spec.loader.exec_module(module)
    from saturate.why import hooks

    hooks.begin()


def _own() -> None:
    others = [path for path in sys.path if Path(path or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "SATURATE_WHY" in os.environ:
    if sys.version_info >= (3, 11):  # noqa: UP036, theirs may be older than ours
        _begin()
    else:
        print(
            "saturate why: not measured: it needs Python 3.11 or newer", file=sys.stderr
        )
_own()
