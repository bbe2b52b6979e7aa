"""What an operator sees: counters, histograms, the access log.

In: finished requests and gaps from the data path, as plain numbers. Out: Prometheus text and log lines. The data
path only adds to ints and lists; everything dearer happens when somebody scrapes, or ten times a second. Labels are
bounded: models and tenants of the spec, never what a client wrote. Prompts and keys never get here.
"""
