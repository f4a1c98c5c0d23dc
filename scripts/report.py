"""`python -m scripts.report`: the program is saturate/run/report.py."""

import sys
from pathlib import Path

# also as `python scripts/report.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.report import main

if __name__ == "__main__":
    sys.exit(main())
