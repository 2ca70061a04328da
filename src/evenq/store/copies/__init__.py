"""A log that is one copy of a broker group: written by a follower, cut, repaired, replayed, and handed over to the
store of a leader.
"""
