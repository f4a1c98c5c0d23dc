"""A network for runs that are about ranks: small, with what ranks must agree on."""

from __future__ import annotations

from torch import nn


def tiny(num_classes: int) -> nn.Module:
    """Return a network with a batch norm, whose statistics each rank has of its own."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, num_classes),
    )


def forgetful(num_classes: int) -> nn.Module:
    """Return one with dropout."""
    *layers, head = tiny(num_classes).children()
    return nn.Sequential(*layers, nn.Dropout(0.5), head)
