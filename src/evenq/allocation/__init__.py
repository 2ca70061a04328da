"""evenq.allocation"""
