"""What exists, in which order, with which numbers. NumPy only: importing it never imports torch."""
