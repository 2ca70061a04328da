"""Members, senders and judges live beside the tests, in the folder `evenq_live`."""

from __future__ import annotations

import sys
from pathlib import Path

from evenq_proofs.clusters import cluster, shared_cluster  # noqa: F401 - fixtures

sys.path.insert(0, str(Path(__file__).resolve().parent))
