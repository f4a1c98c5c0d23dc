"""`python -m scripts.try`: the program is saturate/run/try_page.py."""

import sys
from pathlib import Path

# also as `python scripts/try.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.try_page import main

if __name__ == "__main__":
    sys.exit(main())
