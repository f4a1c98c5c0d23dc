"""Programs: settings -> a run, and what is done with it; `saturate NAME` and `python -m scripts.NAME`."""
