"""Programs that a user runs, `python -m scripts.NAME`; their bodies lie in saturate/run/."""
