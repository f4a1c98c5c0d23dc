"""`python -m scripts.export`: the program is saturate/run/export.py."""

import sys
from pathlib import Path

# also as `python scripts/export.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.export import main

if __name__ == "__main__":
    sys.exit(main())
