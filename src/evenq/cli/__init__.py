"""The command `evenq`: start a cluster, create and show topics and groups, produce and consume. The only package above
the programs.
"""
