"""A store's folder from its lock to an open store: recovery, and the periodic work that keeps the next start short
(snapshots, checkpoints, syncs, retention).
"""
