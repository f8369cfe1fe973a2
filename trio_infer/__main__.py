"""``python -m trio_infer``: the command line, where its script is not on the path."""

from __future__ import annotations

import sys

from _trio_infer_start import main

sys.exit(main())
