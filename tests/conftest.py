from __future__ import annotations

from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("trio_infer", deadline=None)  # how fast the machine is, is no property
settings.load_profile("trio_infer")

# nox -s megatron installs what these need
collect_ignore = [] if find_spec("megatron") else ["megatron"]
