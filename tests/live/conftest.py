"""Members, senders and judges live beside the tests, in the folder `evenq_live`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
