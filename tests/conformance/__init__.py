"""Put the same assertions to every loader, plan, task and source."""

import pytest

pytest.register_assert_rewrite("tests.conformance.checks", "tests.conformance.leaving")
