"""Broker groups of real processes under faults of their links (reliability T5) and under kills (T3), with the checker."""
