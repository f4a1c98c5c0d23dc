"""Image files -> columns by their headers, and a synthetic stand-in."""
