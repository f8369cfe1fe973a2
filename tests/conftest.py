from __future__ import annotations

import os
from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("trio_infer", deadline=None)  # how fast the machine is, is no property
settings.load_profile("trio_infer")

# nox -s megatron installs what the one needs, and nox -s partition gives the other a host to itself
collect_ignore = [] if find_spec("megatron") else ["megatron"]
if "TRIO_INFER_PARTITION" not in os.environ:
    collect_ignore.append("partition")
