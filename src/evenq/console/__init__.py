"""The web console: a cluster in a browser. `evenq console` and `evenq up` serve it; needs `evenq[console]`."""
