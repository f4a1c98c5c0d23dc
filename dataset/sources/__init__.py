"""Row -> path or bytes: one file a layout of the data."""
