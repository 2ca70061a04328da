"""The metrics of the broker, by subject; `broker_metrics` lists them all."""
