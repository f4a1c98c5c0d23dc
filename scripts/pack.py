"""`python -m scripts.pack`: the program is saturate/run/pack.py."""

import sys
from pathlib import Path

# also as `python scripts/pack.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.pack import main

if __name__ == "__main__":
    sys.exit(main())
