"""The rebalancer program: `core` decides, `loops` run over time, `rpc` serves calls."""
