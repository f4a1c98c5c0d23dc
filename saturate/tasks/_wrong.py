"""The former name of tasks._classification_report; gone with the next release."""

from saturate.tasks._classification_report import confusion

__all__ = ["confusion"]
