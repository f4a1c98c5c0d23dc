"""Networks of a user's own: `--arch package.module:function` calls a function that returns one. Imports
nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from saturate.models import Loaded, Native, Unusable
from saturate.models._weights import load
from saturate.system.user_files import imported


@dataclass(frozen=True, kw_only=True)
class Functions:
    """A Registry of functions: `function(num_classes=N)` returns a network that takes what a task's own take.

    Its input is that of the task's default architecture, but for what --image-size, --mean and --std say.
    """

    of_the_task: Native
    # tasks.kind.TaskKind.adopted
    adopt: Callable[[nn.Module, str, tuple[int, ...]], nn.Module]

    def names(self) -> list[str]:
        """Return none: whatever can be imported is a name."""
        return []

    def native(self, arch: str, weights: str | None = None) -> Native:
        """Return what the task's default architecture was made for."""
        return self.of_the_task

    def build(
        self,
        arch: str,
        *,
        classes: int,
        shape: tuple[int, ...],
        weights: str | None = None,
        **options: object,
    ) -> tuple[nn.Module, Loaded]:
        """Call the function and load `weights`, a file, if any. Raises Unusable."""
        asked = [name for name, value in options.items() if value]
        if asked:
            flag = f"--{asked[0].replace('_', '-')}"
            raise Unusable(
                f"{flag} is not for --arch {arch}, which is built by a function; leave it out"
            )
        stock = function(arch)(num_classes=classes)
        if not isinstance(stock, nn.Module):
            raise Unusable(
                f"--arch {arch} returned {type(stock).__name__}, not a torch.nn.Module"
            )
        module = self.adopt(stock, arch, shape)
        if not weights:
            return module, Loaded()
        return module, load(module, arch, weights)

    def classes(self, arch: str, weights: str) -> tuple[str, ...]:
        """Return (): nobody has named the outputs of such a network."""
        return ()


def function(arch: str) -> Callable[..., Any]:
    """Import the function that `package.module:function` names; the folder of now is searched last.

    Raises Unusable.
    """
    try:
        target = imported(arch)
    except (ImportError, AttributeError, ValueError) as error:
        form = "package.module:function, in a package on PYTHONPATH or in this folder"
        raise Unusable(
            f"--arch {arch} cannot be imported ({error}); it is {form}"
        ) from None
    if not callable(target):
        raise Unusable(
            f"--arch {arch} is a {type(target).__name__}, and no function that returns a network"
        )
    made: Callable[..., Any] = target
    return made
