"""WHICH sample, in WHICH order, with WHICH numbers. NumPy alone; imports nothing of ours but contracts."""
