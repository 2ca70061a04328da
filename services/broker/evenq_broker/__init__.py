"""The broker: `core` holds pure decisions, `loops` carry them out, `rpc` handles calls."""
