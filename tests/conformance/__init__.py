"""Put the same assertions to every loader; pictures.py scenes.py looking.py, and for clips moving.py
reels.py, hold what they share.
"""

import pytest

pytest.register_assert_rewrite("tests.conformance.checks", "tests.conformance.leaving")
