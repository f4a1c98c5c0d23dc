"""`python -m scripts.doctor`: the program is saturate/run/doctor.py."""

import sys
from pathlib import Path

# also as `python scripts/doctor.py`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from saturate.run.doctor import main

if __name__ == "__main__":
    sys.exit(main())
