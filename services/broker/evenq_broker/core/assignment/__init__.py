"""Local computation of assignments, and the search for the leading rebalancer."""
