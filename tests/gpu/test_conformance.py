"""The assertions of tests/conformance, with batches on the GPU and dali-gpu among the loaders:
SATURATE_SAMPLES names real images.
"""

from __future__ import annotations

from tests.conformance import (
    test_dali_fed,
    test_damage,
    test_exif,
    test_leaving,
    test_opening,
    test_pixels,
    test_places,
    test_resume,
    test_rows,
    test_signals,
    test_workers,
)

MODULES = (
    *(test_damage, test_exif, test_dali_fed, test_leaving, test_opening),
    *(test_pixels, test_places, test_resume, test_rows, test_signals),
    test_workers,
)
FIXTURES = {"delays", "turned", "both"}
"""Those of the modules themselves."""
for _module in MODULES:
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") or _name in FIXTURES:
            assert _name not in globals(), _name
            globals()[_name] = _test
