"""Plans of a query: offsets, ranges, marks, losses and checkpoints."""
