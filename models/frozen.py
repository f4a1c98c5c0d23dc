"""Parameters that are not trained, by a pattern of their names."""

from __future__ import annotations

import re

from torch import nn

from saturate.models import Unusable


def freeze(module: nn.Module, pattern: str) -> str:
    """Stop the training of parameters whose name the pattern matches from its beginning; return a line.

    Batch norms of which nothing is trained any more keep their statistics too. Raises Unusable for a pattern
    that is none, that matches nothing, or everything.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise Unusable(
            f"--freeze '{pattern}' is no regular expression: {error}"
        ) from None
    names = [name for name, _ in module.named_parameters()]
    frozen = [name for name in names if compiled.match(name)]
    if not frozen or len(frozen) == len(names):
        which = "all" if frozen else "none"
        raise Unusable(
            f"--freeze '{pattern}' matches {which} of the {len(names)} parameters, such as {names[0]} and "
            f"{names[-1]}"
        )
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(
            parameter.requires_grad and compiled.match(name) is None
        )
    for path, layer in module.named_modules():
        own = list(layer.parameters(recurse=False))
        trained = any(parameter.requires_grad for parameter in own)
        # with affine=False a norm has no weight: the name that it would have tells
        trained |= not own and compiled.match(f"{path}.weight") is None
        if isinstance(layer, nn.modules.batchnorm._NormBase) and not trained:
            layer.register_forward_pre_hook(_keep_statistics)
    return f"--freeze '{pattern}' leaves {len(frozen)} of {len(names)} parameters untrained"


def _keep_statistics(layer: nn.Module, _: object) -> None:
    layer.training = False
