"""`python -m scripts.compare`: the program is saturate/run/compare.py."""

import sys
from pathlib import Path

# also as `python scripts/compare.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.compare import main

if __name__ == "__main__":
    sys.exit(main())
