"""Video files -> columns by their packets, and a synthetic stand-in."""
