"""evenq_broker: one of evenq's programs. `core` decides, `loops` do, `rpc` speaks."""
