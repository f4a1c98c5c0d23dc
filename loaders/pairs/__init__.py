"""Loaders of pairs of images, one a file."""
