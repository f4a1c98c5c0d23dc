"""WHAT exists: files and annotations -> columns, and the bytes behind a row. Never imports torch."""
