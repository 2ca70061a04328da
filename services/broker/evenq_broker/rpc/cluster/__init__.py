"""Any broker answers for all: routes, forwarding, scaling."""
