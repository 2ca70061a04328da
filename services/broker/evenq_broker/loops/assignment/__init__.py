"""The line to the rebalancer: reports up, decisions down."""
