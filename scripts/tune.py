"""`python -m scripts.tune`: the program is saturate/run/tune.py."""

import sys
from pathlib import Path

# also as `python scripts/tune.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.tune import main

if __name__ == "__main__":
    sys.exit(main())
