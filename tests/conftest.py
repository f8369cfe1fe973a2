from __future__ import annotations

from hypothesis import settings

settings.register_profile("trio_infer", deadline=None)  # how fast the machine is, is no property
settings.load_profile("trio_infer")
