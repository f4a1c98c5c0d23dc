"""Loops by hand, as others write them, to compare with."""
