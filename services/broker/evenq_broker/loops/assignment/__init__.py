"""The link to the rebalancer: reports up, decisions down."""
