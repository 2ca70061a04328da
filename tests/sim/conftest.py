"""The world's modules live beside the tests, in the folder `evenq_sim`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
