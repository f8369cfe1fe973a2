"""What CONTRIBUTING names is where it says."""

from __future__ import annotations

import re
from pathlib import Path

import trio_infer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")

PLACES = [Path(trio_infer.__file__).parent, ROOT, Path(trio_infer.__file__).parents[1]]


def test_each_place_that_contributors_are_sent_to_is_there() -> None:
    (table,) = re.findall(r"^\| what \| where \|\n(?:\|.*\n)+", PAGE, re.MULTILINE)
    named = set(re.findall(r"`([\w/]+(?:\.\w+|/))`", table))
    assert {"models/completion.py", "telemetry/", "_trio_infer_pytest.py"} < named
    assert not {name for name in named if not any((each / name).exists() for each in PLACES)}
