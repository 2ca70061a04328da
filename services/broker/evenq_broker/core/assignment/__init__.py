"""Who should read what, computed here; which rebalancer to ask."""
