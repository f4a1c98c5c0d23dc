"""`python -m scripts.photos`: the program is saturate/run/photos.py."""

import sys
from pathlib import Path

# also as `python scripts/photos.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.photos import main

if __name__ == "__main__":
    sys.exit(main())
