"""`python -m scripts.why`: the program is saturate/why/launch.py."""

import sys
from pathlib import Path

# also as `python scripts/why.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.why.launch import main

if __name__ == "__main__":
    sys.exit(main())
