"""The loaders of clips of videos, one a file."""
