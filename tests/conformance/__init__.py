"""The same assertions on every loader; pictures.py scenes.py looking.py, and of clips moving.py reels.py,
hold what they share.
"""

import pytest

pytest.register_assert_rewrite("tests.conformance.checks", "tests.conformance.leaving")
