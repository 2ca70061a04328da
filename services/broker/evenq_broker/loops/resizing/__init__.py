"""Topics that grow, shrink and leave; brokers that drain."""
