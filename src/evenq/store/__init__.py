"""evenq.store"""
