"""The former name of dataset.stores.bucket; gone with the next release."""

from saturate.dataset.stores.bucket import _absolute

__all__ = ["_absolute"]
