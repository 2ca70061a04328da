"""What the Sparks that tests start run in place of a part of PySpark's own. `evenq_proofs.quick_spark` sets it."""
