"""A store's folder from its lock to an open store: what is recovered, and what runs while it is open so that the
next start is short (snapshots, checkpoints, syncs, retention).
"""
