"""Topics that grow and shrink, brokers that drain and leave."""
