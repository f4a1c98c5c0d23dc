"""The former name of dataset.open, for own loops that import it; gone with the next release."""

from saturate.dataset.open import open_split, open_splits

__all__ = ["open_split", "open_splits"]
