"""The log of one copy of a broker group: written by a follower, cut, repaired, replayed, and passed to a
leader's store.
"""
