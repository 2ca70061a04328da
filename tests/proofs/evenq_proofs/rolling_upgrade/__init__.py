"""T9 of the reliability design: copies of a group are replaced one after the other under load, there and back again."""
