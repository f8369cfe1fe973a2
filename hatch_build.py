"""The description for package indexes: the README without links into the checkout."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Of links to files, which lead nowhere on an index, it leaves the words."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the description in."""
        readme = Path(self.root, "README.md").read_text("utf-8")
        text = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", readme)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
