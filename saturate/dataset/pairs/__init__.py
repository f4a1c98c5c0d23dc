"""Pairs of images, one a whole number of times as large as the other."""
