from __future__ import annotations

import os
import signal
from importlib.util import find_spec

from hypothesis import settings

# A shell starts what is to run in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("trio_infer", deadline=None)  # how fast the machine is, is no property
settings.load_profile("trio_infer")

# nox -s megatron installs what the one needs, and nox -s partition gives the other a host to itself
collect_ignore = [] if find_spec("megatron") else ["megatron"]
if "TRIO_INFER_PARTITION" not in os.environ:
    collect_ignore.append("partition")
